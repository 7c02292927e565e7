#!/usr/bin/env bash
# Builds dist/gpu-bundle: server, client, CUDA backend, GPU tests and benchmark as one folder that runs on
# an Ubuntu 24.04 host with a GPU, a CUDA 13 cuBLAS and nothing of ours. The distribution's libraries
# lie beside the programs; glibc and the compiler's run-time libraries are the host's.
#   bundle.sh           all of it
#   bundle.sh kernels   without server and client: all of ./dev gpu but bench --filter rpc, batching
#   bundle.sh server    without tests and examples: for ./dev gpu bench, all but --filter numerics
# A part has at most 54 MiB, so that it can be carried to a GPU host quickly.
set -euo pipefail
FUSEBLOCK_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export FUSEBLOCK_ROOT
cd "$FUSEBLOCK_ROOT"
for library in steps packages build; do
  # shellcheck source=/dev/null
  source "tools/dev/lib/$library.sh"
done

readonly build_folder=build/gpu-bundle bundle=dist/gpu-bundle part=${1:-all} size_max_mib=54
# Tests, and what the ladder allows, of CMake targets of the same names.
tests=(gpu_kernels_test gpu_reduce_test gpu_linear_test gpu_block_test gpu_few_tokens_test
  gpu_large_test gpu_rope_test gpu_engine_test numerics_rungs_test numerics_bounds)
examples=(ffn_path normalise_and_gate)
programs=(server/fuseblock-server client/cli/fuseblock
  tests/bench/fuseblock_bench_{rpc,echo,open_loop,batching})
case $part in
  all) ;;
  kernels) programs=() ;;
  server) tests=() examples=() ;;
  *) usage_error "usage: tools/gpu/bundle.sh [kernels|server]" ;;
esac
readonly programs tests examples
readonly targets=("${programs[@]##*/}" fuseblock_kernels_cuda fuseblock_gpu_ffn fuseblock_rows "${tests[@]}")

configure_bundle() {
  local root
  root=$(cuda_root)
  # shellcheck disable=SC2046
  cmake -B "$build_folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFUSEBLOCK_CUDA=ON \
    "-DCMAKE_CUDA_ARCHITECTURES=${FUSEBLOCK_BUNDLE_ARCHITECTURES:-80-real;89-real;90a-real;90-virtual}" \
    $(cuda_arguments "$root")
}

# The examples as users build them: from an install tree of the kernels alone.
build_examples() {
  local folder=$build_folder-examples
  cmake -B "$folder/kernels" -G Ninja -DCMAKE_BUILD_TYPE=Release -DFUSEBLOCK_SERVER=OFF \
    -DFUSEBLOCK_TESTS=OFF &&
    cmake --build "$folder/kernels" --parallel "$(jobs)" &&
    cmake --install "$folder/kernels" --prefix "$PWD/$folder/prefix" &&
    cmake -S examples/kernels -B "$folder/examples" -G Ninja -DCMAKE_BUILD_TYPE=Release \
      "-DCMAKE_PREFIX_PATH=$PWD/$folder/prefix" &&
    cmake --build "$folder/examples" --parallel "$(jobs)"
}

# Shared libraries that the file needs and the host lacks: all but glibc's and the compiler's.
needed_libraries() {
  ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// && $1 !~ /^(libc|libm|libdl|libpthread|librt|libresolv|libutil|libstdc\+\+|libgcc_s)\.so/ {
    print $3
  }'
}

install_bundle() {
  local file library
  rm -rf "$bundle"
  mkdir -p "$bundle/bin" "$bundle/lib"
  for file in "${programs[@]}"; do cp "$build_folder/$file" "$bundle/bin/"; done
  for file in "${tests[@]}"; do
    find "$build_folder/tests" -type f -name "$file" -exec cp {} "$bundle/bin/" \;
  done
  for file in "${examples[@]}"; do cp "$build_folder-examples/examples/$file" "$bundle/bin/"; done
  cp "$build_folder"/lib/libfuseblock_{kernels_cuda,gpu_ffn,rows}.so "$bundle/lib/"
  for file in "$bundle"/bin/* "$bundle"/lib/libfuseblock_*.so; do
    needed_libraries "$file"
  done | sort -u | while read -r library; do
    cp --dereference "$library" "$bundle/lib/"
  done
  strip --strip-unneeded "$bundle"/bin/* "$bundle"/lib/*
  # shellcheck disable=SC2016
  for file in "$bundle"/lib/*; do patchelf --set-rpath '$ORIGIN' "$file"; done
  # shellcheck disable=SC2016
  for file in "$bundle"/bin/*; do patchelf --set-rpath '$ORIGIN/../lib' "$file"; done
  git describe --always --abbrev=40 --exclude="*" --dirty >"$bundle/commit"
}

command -v patchelf >/dev/null || step "installing patchelf" install_debian patchelf
[[ -n $(cuda_root) ]] || need_cuda_wheels
step "configuring (GPU bundle)" configure_bundle
step "building (GPU bundle)" cmake --build "$build_folder" --parallel "$(jobs)" --target "${targets[@]}"
((${#examples[@]} == 0)) || step "building the examples (GPU bundle)" build_examples
step "installing (GPU bundle)" install_bundle
mib=$(du --summarize --block-size=1M "$bundle" | cut -f1)
say "$bundle: $mib MiB"
[[ $part == all ]] || ((mib <= size_max_mib)) ||
  die "more than $size_max_mib MiB; FUSEBLOCK_BUNDLE_ARCHITECTURES=90a-real makes it smaller"
