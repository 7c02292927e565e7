# test: builds everything that needs no GPU, warnings being errors, and runs all tests
# usage: ./dev test [CTEST ARGUMENT...]     for example: ./dev test -R RmsNorm
# The Python tests run first; with arguments for ctest they are left out.

python_tests() {
  FUSEBLOCK_BUILD=$FUSEBLOCK_ROOT/build/ci "$(python_of test)" -m pytest -q client examples tools
}

main() {
  need_debian build test
  need_python test
  build ci
  if [[ $# -eq 0 ]]; then
    title "Python tests"
    python_tests
    title "C++ tests"
  fi
  ctest --test-dir build/ci --output-on-failure --parallel "$(jobs)" "$@"
}
