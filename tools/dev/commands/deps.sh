# deps: installs what the other commands need: ./dev deps [build|test|demo|bench|check|load|image|cuda]...
# Without a name: what ./dev test needs. The other commands call this themselves. Distribution
# packages come by apt (as root or with sudo), the rest goes into .deps. `cuda` installs the CUDA 13
# toolkit's wheels (1.1 GB), with which the CUDA backend compiles on a machine without a toolkit.

main() {
  local use
  [[ $# -gt 0 ]] || set -- test
  for use in "$@"; do
    case $use in
      build) need_debian build ;;
      test) need_debian build test && need_python test ;;
      demo) need_debian build && need_python demo ;;
      bench) need_debian build bench && need_python bench ;;
      check) need_debian build check && need_python check ;;
      load) need_debian build && need_go_tools ;;
      image) need_debian image ;;
      cuda) need_debian build && need_cuda_wheels ;;
      *) usage_error "no set of packages '$use'; ./dev help deps lists them" ;;
    esac
  done
}
