# help: prints this list
# Each command's first comment is its summary, the comment lines after it are its usage.

describe() {
  local command
  printf '\n%s%s%s\n' "$bold" "$1" "$plain"
  shift
  for command in "$@"; do
    printf '  %-10s %s\n' "$command" \
      "$(sed -nE "1s/^# $command: //p" "tools/dev/commands/$command.sh")"
  done
}

main() {
  if [[ $# -gt 0 ]]; then
    [[ -f tools/dev/commands/$1.sh ]] || usage_error "no command '$1'"
    awk '!/^#/ { exit } { sub(/^# ?/, ""); print }' "tools/dev/commands/$1.sh"
    return
  fi
  say "usage: ./dev COMMAND [ARGUMENT...]     ./dev help COMMAND tells more"
  describe "Use it" demo serve bench
  describe "Change it" test check sanitize fuzz gpu
  describe "Put it under load" load soak
  describe "Ship it" image evidence
  describe "Set up" deps help
}
