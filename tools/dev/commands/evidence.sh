# evidence: lists every published claim with its age, commit and machine: ./dev evidence [ID|tables]
# With an ID the claim's command runs again and its record is replaced. `tables` writes the README's
# tables anew from the records, `tables --check` fails when they differ.

main() { exec "${PYTHON:-python3}" evidence/ledger.py "$@"; }
