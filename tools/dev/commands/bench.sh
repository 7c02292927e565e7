# bench: times the kernels on this machine's CPU: ./dev bench [BENCHMARK ARGUMENT...]
# Builds tests/bench and runs it; ./dev gpu bench does the same on a GPU.

main() {
  local program
  need_debian build
  build release
  for program in build/release/tests/bench/*; do
    if [[ -f $program && -x $program ]]; then
      title "$(basename "$program")"
      "$program" "$@"
    fi
  done
}
