# sanitize: builds with sanitizers and runs the C++ tests: ./dev sanitize asan|tsan [LABEL...]
# asan: of addresses and of undefined behaviour; tsan: of threads. The row kernels are compiled for one
# instruction set only (AVX2), or the build would take an hour.
# Labels: unit numerics golden integration fuzz (default: all of them).

main() {
  local preset=${1:-} label labels targets=()
  case $preset in
    asan | tsan) shift ;;
    *) usage_error "usage: ./dev sanitize asan|tsan [LABEL...]" ;;
  esac
  [[ $# -gt 0 ]] || set -- unit numerics golden integration fuzz
  need_debian build test
  for label in "$@"; do
    if [[ $label == fuzz ]]; then targets+=(fuzz_targets); else targets+=("tests_$label"); fi
  done
  build "$preset" "${targets[@]}"
  labels=$(IFS='|' && echo "$*")
  # An allocation too large for any machine fails, as without the sanitizer: a test asks for one.
  # ThreadSanitizer goes through a list of all addresses it has met a race at for each further race, those
  # that tsan.txt suppresses too: with each word of the messages that gRPC hands over on it, a test that
  # sends megabytes comes to stand still. With suppress_equal_addresses=0 it keeps none.
  # What touched a word before is found in a history of the longest kind only (7), and without its frames
  # tsan.txt does not apply.
  ASAN_OPTIONS=detect_leaks=1:abort_on_error=1:allocator_may_return_null=1 \
  LSAN_OPTIONS=suppressions=$FUSEBLOCK_ROOT/tools/dev/sanitizers/lsan.txt \
  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
  TSAN_OPTIONS=halt_on_error=1:history_size=7:suppress_equal_addresses=0:allocator_may_return_null=1:second_deadlock_stack=1:suppressions=$FUSEBLOCK_ROOT/tools/dev/sanitizers/tsan.txt \
    ctest --test-dir "build/$preset" --output-on-failure --parallel "$(jobs)" -L "^($labels)\$"
}
