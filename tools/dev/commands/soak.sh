# soak: mixed load with crashing clients for a long while: ./dev soak [MINUTES]
# Default 60 minutes. Watches the server's memory, errors and counters; the record is
# evidence/records/soak.json.

main() {
  need_debian build
  need_demo_python
  need_smollm2 bfloat16
  build release fuseblock-server fuseblock
  "$demo_python" tests/load/soak.py --build build/release \
    --model "$FUSEBLOCK_MODELS/$smollm2_folder" --minutes "${1:-60}"
}
