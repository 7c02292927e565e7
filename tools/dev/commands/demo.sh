# demo: builds the server, serves a real model's blocks and shows that the answers are right
# usage: ./dev demo     (the first run installs and builds, later runs take seconds)
# Gets SmolLM2-135M-Instruct, converts it, starts the server on a free port, compares its answers with
# transformers' and generates text through it. Leaves nothing running.

main() {
  local preset model
  title "Fuseblock demo"
  need_debian build
  need_demo_python
  need_smollm2 bfloat16
  preset=$(run_preset)
  build "$preset" fuseblock-server fuseblock
  model=$FUSEBLOCK_MODELS/$smollm2_folder
  start_server "$preset" build/logs/demo-server.log \
    --set "models.smollm2.path=$model" --set models.smollm2.dtype=BF16 \
    --set models.smollm2.rounding=hf \
    --set "models.smollm2-fp32.path=$model" --set models.smollm2-fp32.dtype=FP32 \
    --set models.smollm2-fp32.rounding=hf
  "$demo_python" tools/demo/demo.py --server "$server_address" --metrics "$metrics_address" \
    --model "$model" --cli "build/$preset/client/cli/fuseblock"
}
