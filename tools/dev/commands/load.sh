# load: starts the server, runs ghz against RunBlock and keeps the report as a record
# usage: ./dev load [SECONDS-PER-CASE]     (default 10)
# The record is evidence/records/load_smoke.json, ghz's own reports lie beside it in load_smoke/.

main() {
  need_debian build
  need_demo_python
  need_go_tools
  need_smollm2 bfloat16
  build release fuseblock-server fuseblock
  "$demo_python" tests/load/load_smoke.py --build build/release --tools "$FUSEBLOCK_DEPS/bin" \
    --model "$FUSEBLOCK_MODELS/$smollm2_folder" --seconds "${1:-10}"
}
