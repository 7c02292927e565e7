# sanitize: builds with a sanitizer and runs the tests: ./dev sanitize asan|tsan|ubsan [CTEST ARGUMENT...]

main() {
  local preset=${1:-}
  case $preset in
    asan | tsan | ubsan) shift ;;
    *) usage_error "usage: ./dev sanitize asan|tsan|ubsan [CTEST ARGUMENT...]" ;;
  esac
  need_debian build test
  build "$preset"
  # The gRPC and protobuf libraries of the distribution are not instrumented: what they do to the
  # memory of our callbacks is seen, what they do among themselves is suppressed in these files.
  local sanitizers=$FUSEBLOCK_ROOT/tools/dev/sanitizers
  ASAN_OPTIONS=detect_leaks=1:abort_on_error=1:suppressions=$sanitizers/asan.txt \
  LSAN_OPTIONS=suppressions=$sanitizers/lsan.txt \
  TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$sanitizers/tsan.txt \
  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1:suppressions=$sanitizers/ubsan.txt \
    ctest --test-dir "build/$preset" --output-on-failure --parallel "$(jobs)" "$@"
}
