#!/usr/bin/env bash
# The content of `./dev gpu test|sanitize|bench|profile [--filter WORD]`: on a machine with a GPU, with the
# bundle of tools/gpu/bundle.sh when dist/gpu-bundle is there, else with what it builds here. Records go to
# evidence/records and, with an archive of the logs, to $OUT (default build/gpu). Each command ends
# within FUSEBLOCK_GPU_SECONDS (default 460).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly out=${OUT:-build/gpu}
readonly limit_seconds=${FUSEBLOCK_GPU_SECONDS:-460}
readonly started=$SECONDS

usage() {
  echo "usage: ./dev gpu test|sanitize|bench|profile [--filter WORD]" >&2
  exit 2
}

seconds_left() { echo $((limit_seconds - (SECONDS - started))); }

# Sets bin and lib, and what a program needs to find the backend and cuBLASLt.
find_programs() {
  if [[ -f dist/gpu-bundle/commit ]]; then
    bin=$PWD/dist/gpu-bundle/bin lib=$PWD/dist/gpu-bundle/lib
    FUSEBLOCK_BUNDLE_COMMIT=$(<dist/gpu-bundle/commit)
    export FUSEBLOCK_BUNDLE_COMMIT
  else
    ./dev deps build
    FUSEBLOCK_ROOT=$PWD bash -c '
      for library in steps packages build; do source "tools/dev/lib/$library.sh"; done
      build cuda'
    bin=$PWD/build/cuda/tests/gpu lib=$PWD/build/cuda/lib
    ln -sf ../numerics/numerics_{rungs_test,bounds} "$bin/"
  fi
  export FUSEBLOCK_CUDA_LIBRARY=$lib/libfuseblock_kernels_cuda.so
  if [[ -z ${FUSEBLOCK_CUBLASLT:-} ]]; then
    cublaslt=$(find_cublaslt)
    if [[ -n $cublaslt ]]; then export FUSEBLOCK_CUBLASLT=$cublaslt; fi
  fi
  echo "programs: $bin"
  echo "cuBLASLt: ${FUSEBLOCK_CUBLASLT:-where the loader finds it}"
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,memory.used --format=csv,noheader || true
}

# The one that Python's PyTorch brings, so that the benchmark's two sides use the same; else the
# toolkit's; else none.
find_cublaslt() {
  python3 - <<'PYTHON' 2>/dev/null || true
import glob, sys, sysconfig
roots = [path + "/nvidia/*/lib" for path in sys.path if path] + [
    "/usr/local/cuda/lib64", "/usr/local/cuda*/targets/*/lib", "/usr/lib/x86_64-linux-gnu"]
found = [file for root in roots for file in sorted(glob.glob(root + "/libcublasLt.so.13"))]
print(found[0] if found else "", end="")
PYTHON
}

declare -A running=()

# background NAME COMMAND...: its output goes to a log of that name; finish waits for it.
background() {
  local name=$1
  shift
  timeout --kill-after=5 "$(seconds_left)" "$@" >"$logs/$name.log" 2>&1 &
  running[$name]=$!
}

# Waits for all; prints each one's end and, for those that failed, what failed.
finish() {
  local name status failed=0
  for name in $(printf '%s\n' "${!running[@]}" | sort); do
    status=0
    wait "${running[$name]}" || status=$?
    if ((status == 0)); then
      printf 'passed  %-26s %s\n' "$name" "$(grep -E '^\[  PASSED  \]|ERROR SUMMARY|RACECHECK SUMMARY' \
        "$logs/$name.log" | tr -s ' =' ' ' | paste -sd' ' || true)"
    else
      failed=1
      printf 'FAILED  %-26s exit code %s\n' "$name" "$status"
      grep -E -A12 'Failure|^\[  FAILED  \]|=========|rror' "$logs/$name.log" | head -n 40 || true
      tail -n 3 "$logs/$name.log"
    fi
  done
  running=()
  grep -hE '^\[ plan' "$logs"/*.log | sort -u || true
  echo "took $((SECONDS - started)) s"
  return "$failed"
}

run_test() {
  need_tests
  local shard name tests="*$filter*"
  for shard in {0..7}; do  # the host's FP64 takes longer than the GPU
    for name in numerics_rungs_test gpu_few_tokens_test; do
      GTEST_TOTAL_SHARDS=8 GTEST_SHARD_INDEX=$shard background "$name-$shard" \
        "$bin/$name" "--gtest_filter=$tests" --gtest_brief=1
    done
  done
  for name in gpu_reduce_test gpu_kernels_test gpu_linear_test gpu_block_test gpu_large_test \
    gpu_rope_test; do
    background "$name" "$bin/$name" "--gtest_filter=$tests"
  done
  # The example of a program that uses the installed library, where the bundle brings it.
  if [[ -x $bin/normalise_and_gate ]]; then
    background normalise_and_gate "$bin/normalise_and_gate" cpu cuda:0
  fi
  finish || return 1
  # Alone: it looks at how much of the GPU's memory is free.
  background gpu_engine_test "$bin/gpu_engine_test" "--gtest_filter=$tests"
  finish
}

# sanitizer TOOL PROGRAM TESTS [SUFFIX]. racecheck does not look at cuBLAS's own kernels, whose barriers it takes
# minutes over; initcheck takes what cuBLAS writes for unwritten, so it does not run the engine.
sanitizer() {
  local tool=$1 program=$2 tests=$3
  # API errors are the program's own to check, and cuBLAS asks for what it may not find.
  background "$tool-$program${4:-}" compute-sanitizer --tool "$tool" --error-exitcode 9 \
    --report-api-errors no --print-limit 20 "$bin/$program" "--gtest_filter=$tests" --gtest_brief=1
}

run_sanitize() {
  need_tests
  local shard wide="*$filter*"
  sanitizer memcheck gpu_kernels_test "$wide"
  sanitizer memcheck gpu_reduce_test "$wide"
  sanitizer memcheck gpu_linear_test '*Tiles*:*NoInnerAxis*:*AnyAddressAndStride*'
  sanitizer memcheck gpu_block_test '*NoRowsAreNoWork*:*IsWithinItsBound*'
  sanitizer memcheck gpu_few_tokens_test '*SmallFeedForwards*'
  sanitizer memcheck gpu_engine_test '*EveryKindOfBlock*:*CopiedAroundTheirGraphs*'
  finish || return 1
  for shard in {0..7}; do  # it is slow, and one GPU has room for several
    GTEST_TOTAL_SHARDS=8 GTEST_SHARD_INDEX=$shard sanitizer racecheck gpu_kernels_test "$wide-GpuChain*" "-$shard"
  done
  sanitizer racecheck gpu_reduce_test "$wide"
  sanitizer racecheck gpu_linear_test '*Tiles*'
  sanitizer synccheck gpu_kernels_test '*BF16*'
  sanitizer synccheck gpu_reduce_test "$wide"
  sanitizer synccheck gpu_few_tokens_test '*SmallFeedForwards*'
  sanitizer initcheck gpu_kernels_test "$wide"
  sanitizer initcheck gpu_reduce_test "$wide"
  finish
}

# The words that --filter takes: part of HIDDEN/INTERMEDIATE for the feed-forward path; rpc for
# requests through the server; host for the same, and overload, on the host's CPU alone; batching for callers
# of the engine in one process; memory, or memory/ and part of KERNEL/SHAPE/DTYPE, for the row kernels;
# numerics, or numerics/ and part of KERNEL/DTYPE, for their errors.
run_bench() {
  if [[ $filter == numerics* ]]; then
    timeout "$(seconds_left)" python3 tools/bench/numerics.py --device cuda:0 \
      --library "$lib/libfuseblock_rows.so" --bounds "$bin/numerics_bounds" \
      --filter "$(within numerics)" --out "$out"
    return
  fi
  if [[ $filter == memory* ]]; then
    python3 tools/gpu/bench_rows.py --library "$lib/libfuseblock_rows.so" \
      --filter "$(within memory)" --seconds "$(($(seconds_left) - 15))" --out "$out"
    return
  fi
  local server=$bin/fuseblock-server client=$bin
  [[ -x $server ]] || server=$PWD/build/cuda/server/fuseblock-server client=$PWD/build/cuda/tests/bench
  if [[ $filter == host ]]; then
    local bench status=0 suffix
    suffix=_$(nproc)_cores
    rm -f evidence/records/*"$suffix"*.json
    for bench in rpc overload; do
      timeout "$(seconds_left)" python3 "tools/bench/bench_$bench.py" --server "$server" \
        --clients "$client" --suffix "$suffix" || status=1
    done
    cp evidence/records/*"$suffix"*.json "$out"
    return "$status"
  fi
  if [[ $filter == rpc ]]; then
    python3 tools/gpu/bench_rpc.py --server "$server" --client "$client/fuseblock_bench_rpc" \
      --echo "$client/fuseblock_bench_echo" --out "$out"
    return
  fi
  if [[ $filter == batching ]]; then
    timeout "$(seconds_left)" python3 tools/gpu/bench_batching.py \
      --program "$client/fuseblock_bench_batching" --out "$out"
    return
  fi
  python3 tools/gpu/bench_ffn.py --library "$lib/libfuseblock_gpu_ffn.so" \
    --seconds "$(seconds_left)" --out "$out" "$@"
}

# within memory: what --filter says after "memory/".
within() {
  local word=${filter#"$1"}
  printf '%s' "${word#/}"
}

# The profiler sees each row kernel once, after a launch of PyTorch's that marks it. It collects what the
# table shows and no more: each further pass saves and restores gigabytes.
profile_rows() {
  timeout "$(seconds_left)" ncu --clock-control none --profile-from-start off \
    --metrics "$(python3 tools/gpu/profile_table.py --metrics)" \
    --force-overwrite --export "$logs/profile" \
    python3 tools/gpu/bench_rows.py --library "$lib/libfuseblock_rows.so" --profile \
    --filter "$(within memory)" --out "$logs"
  ncu --import "$logs/profile.ncu-rep" --page raw --csv >"$logs/profile.csv"
  python3 tools/gpu/profile_table.py "$logs/profile.csv" --cases "$logs/profile_cases.json" \
    --out "$out"
}

run_profile() {
  if [[ $filter == memory* ]]; then
    profile_rows
    return
  fi
  timeout "$(seconds_left)" ncu --clock-control none --set full --profile-from-start off \
    --kernel-name "regex:${filter:-.}" --launch-count 40 --force-overwrite --export "$logs/profile" \
    python3 tools/gpu/bench_ffn.py --library "$lib/libfuseblock_gpu_ffn.so" --profile --out "$logs"
  ncu --import "$logs/profile.ncu-rep" --page raw --csv >"$logs/profile.csv"
  python3 tools/gpu/profile_table.py "$logs/profile.csv"
}

need_tests() {
  [[ -x $bin/gpu_kernels_test ]] && return
  echo "this bundle has no tests: tools/gpu/bundle.sh kernels brings them" >&2
  exit 2
}

command=${1:-}
[[ $# -gt 0 ]] && shift
filter=''
rest=()
while (($#)); do
  case $1 in
    --filter)
      (($# > 1)) || usage
      filter=$2
      shift
      ;;
    *) rest+=("$1") ;;
  esac
  shift
done
case $command in
  test | sanitize | profile) ((${#rest[@]} == 0)) || usage ;;
  bench) rest+=(--filter "$filter") ;;
  *) usage ;;
esac
logs=build/gpu/$command
rm -rf "$logs"
mkdir -p "$out" "$logs"
trap 'tar -C build/gpu -czf "$out/gpu-$command-logs.tgz" "$command"' EXIT
find_programs
"run_$command" "${rest[@]}"
