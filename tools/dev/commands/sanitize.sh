# sanitize: builds with a sanitizer and runs the tests: ./dev sanitize asan|tsan|ubsan [CTEST ARGUMENT...]

main() {
  local preset=${1:-}
  case $preset in
    asan | tsan | ubsan) shift ;;
    *) usage_error "usage: ./dev sanitize asan|tsan|ubsan [CTEST ARGUMENT...]" ;;
  esac
  need_debian build test
  build "$preset"
  ASAN_OPTIONS=detect_leaks=1:abort_on_error=1 \
  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
  TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$FUSEBLOCK_ROOT/tools/dev/sanitizers/tsan.txt \
    ctest --test-dir "build/$preset" --output-on-failure --parallel "$(jobs)" "$@"
}
