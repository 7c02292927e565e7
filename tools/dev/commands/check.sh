# check: formats, lints and compiles what the tests do not: ./dev check [PART]...
# Parts: format tidy shell python proto docker records cuda (default: all). clang-tidy's results are
# kept by content, so that only what changed is looked at again; FUSEBLOCK_TIDY_SECONDS bounds it.

check_format() {
  git ls-files '*.cc' '*.h' '*.cu' '*.cuh' | xargs clang-format-14 --dry-run -Werror
}

check_tidy() {
  "${PYTHON:-python3}" tools/dev/tidy.py --build build/ci --jobs "$(jobs)" \
    --seconds "${FUSEBLOCK_TIDY_SECONDS:-1800}"
}

check_shell() {
  git ls-files '*.sh' dev .ci/run | xargs shellcheck --severity=style
}

check_python() {
  local bin=$FUSEBLOCK_DEPS/venv/check/bin
  "$bin/ruff" check . && "$bin/ruff" format --check .
}

check_proto() { (cd proto && "$FUSEBLOCK_DEPS/venv/check/bin/buf" lint); }

check_docker() { "$FUSEBLOCK_DEPS/venv/check/bin/hadolint" Dockerfile; }

check_records() { "${PYTHON:-python3}" evidence/ledger.py tables --check; }

main() {
  local part failed=()
  [[ $# -gt 0 ]] || set -- format shell python proto docker records tidy cuda
  need_debian build test check
  need_python check
  for part in "$@"; do
    case $part in
      format | shell | python | proto | docker | records)
        step "checking: $part" "check_$part" || failed+=("$part")
        ;;
      tidy)
        build ci
        step "checking: clang-tidy" check_tidy || failed+=(tidy)
        note "$(tail -n 1 build/logs/checking-clang-tidy.log)"
        ;;
      cuda)
        [[ -n $(cuda_root) ]] || need_cuda_wheels
        build cuda fuseblock_kernels_cuda
        ;;
      *) usage_error "no part '$part'; ./dev help check lists them" ;;
    esac
  done
  ((${#failed[@]} == 0)) || die "these checks failed: ${failed[*]}"
}
