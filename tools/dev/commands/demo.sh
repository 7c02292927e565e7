# demo: builds the server, serves a real model's blocks and shows that the answers are right
# usage: ./dev demo     (the first run installs and builds, later runs take seconds)
# Gets SmolLM2-135M-Instruct, converts it, starts the server on a free port, compares its answers with
# transformers' and generates text through it. Leaves nothing running.

main() {
  local preset
  title "Fuseblock demo"
  need_debian build
  need_python demo
  need_smollm2 bfloat16
  preset=$(run_preset)
  build "$preset" fuseblock-server fuseblock
  start_server "$preset" build/logs/demo-server.log \
    --model "smollm2=$FUSEBLOCK_MODELS/$smollm2_folder"
  "$(python_of demo)" tools/demo/demo.py --server "$server_address" \
    --metrics "$metrics_address" --model "$FUSEBLOCK_MODELS/$smollm2_folder"
}
