# Builds: one folder for each CMake preset, the compiler cache shared by all checkouts.

# Paths in the cache are relative to the checkout, so that a fresh clone finds what an older one built.
export CCACHE_BASEDIR=$FUSEBLOCK_ROOT CCACHE_NOHASHDIR=1 CCACHE_MAXSIZE=${CCACHE_MAXSIZE:-5G}
export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}

jobs() { printf '%s' "${FUSEBLOCK_JOBS:-$(nproc)}"; }

configure() {  # PRESET ARGUMENT...
  local preset=$1
  shift
  cmake --preset "$preset" "$@"
  printf '%s\n' "$*" >"build/$preset/configured"
}

cuda_arguments() {
  local root=$1
  printf '%s\n' "-DCMAKE_CUDA_COMPILER=$root/bin/nvcc" "-DCUDAToolkit_ROOT=$root"
}

# build PRESET [TARGET...]: configures where that is needed and builds the targets (default: all).
build() {
  local preset=$1 arguments=()
  shift
  if [[ $preset == cuda ]]; then
    mapfile -t arguments < <(cuda_arguments "$(cuda_root)")
  fi
  if [[ ! -f build/$preset/build.ninja ||
    "$(cat "build/$preset/configured" 2>/dev/null)" != "${arguments[*]}" ]]; then
    step "configuring ($preset)" configure "$preset" "${arguments[@]}"
  fi
  step "building ($preset)" cmake --build "build/$preset" --parallel "$(jobs)" \
    ${1:+--target "$@"}
}

# The preset for programs that a person runs: with the CUDA backend where it can be built and used.
run_preset() {
  if has_gpu_driver && [[ -n $(cuda_root) ]]; then echo cuda; else echo release; fi
}
