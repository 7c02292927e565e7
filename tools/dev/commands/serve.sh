# serve: builds the server and runs it in the foreground on SmolLM2, or as the arguments say
# usage: ./dev serve [SERVER ARGUMENT...]     for example: ./dev serve --config my.toml
# Without arguments it serves SmolLM2-135M as "smollm2" on the usual ports. Ctrl-C drains it.

main() {
  local preset
  need_debian build
  preset=$(run_preset)
  build "$preset" fuseblock-server fuseblock
  if [[ $# -eq 0 ]]; then
    need_demo_python
    need_smollm2 bfloat16
    set -- --model "smollm2=$FUSEBLOCK_MODELS/$smollm2_folder"
  fi
  exec "build/$preset/server/fuseblock-server" "$@"
}
