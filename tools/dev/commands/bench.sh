# bench: times kernels and requests on this machine's CPU: ./dev bench [ffn|rpc|overload|memory|numerics|faults] [ARGUMENT...]
#   ffn [WORD]        the feed-forward beside other libraries, without a name this and rpc:
#                     evidence/records/cpu_ffn. WORD: a part of HIDDEN/INTERMEDIATE/DTYPE/THREADS
#   rpc [ARGUMENT..]  requests through the server beside a bare gRPC echo: rpc_latency, rpc_throughput
#   overload [ARG..]  an open loop at 2, 4 and 10 times the server's capacity: overload
#   memory [WORD]     the row kernels beside PyTorch, 1 and 2 threads: evidence/records/cpu_memory_bound
#   numerics [WORD]   their largest errors beside PyTorch's: evidence/records/numerics
#   faults            what clients see of devices that fail: evidence/records/faults
# WORD: a part of KERNEL/SHAPE/DTYPE. PyTorch is that of the Python in FUSEBLOCK_TORCH_PYTHON, or is
# installed. ./dev gpu bench does the same on a GPU.

need_torch() {
  if [[ -z ${FUSEBLOCK_TORCH_PYTHON:-} ]]; then
    need_debian build bench
    need_python bench
    FUSEBLOCK_TORCH_PYTHON=$(python_of bench)
  fi
}

# PyTorch and, where they can be had, the other peers: those of FUSEBLOCK_FFN_PEERS (a folder of Python
# packages) or of the Python's own.
bench_ffn() {  # [WORD]
  local part parts=()
  need_torch
  build release fuseblock_ffn
  for part in {576/1536,2048/8192,4096/14336}/{fp32,bf16}/{1,2}; do
    [[ $part == *"${1:-}"* ]] && parts+=("$part")
  done
  title "ffn"
  for part in "${parts[@]}"; do
    # Huge pages for the peers' weights, too.
    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 PYTHONPATH=${FUSEBLOCK_FFN_PEERS:-} \
      "$FUSEBLOCK_TORCH_PYTHON" tools/bench/bench_ffn_cpu.py --part "$part" \
      --library build/release/lib/libfuseblock_ffn.so
  done
}

bench_rpc() {  # ARGUMENT...: of bench_rpc.py
  need_demo_python
  build release fuseblock-server fuseblock_bench_rpc fuseblock_bench_echo fuseblock_bench_open_loop
  title "rpc"
  "$demo_python" tools/bench/bench_rpc.py --server build/release/server/fuseblock-server \
    --clients build/release/tests/bench "$@"
}

bench_overload() {  # ARGUMENT...: of bench_overload.py
  need_demo_python
  build release fuseblock-server fuseblock_bench_rpc fuseblock_bench_echo fuseblock_bench_open_loop
  title "overload"
  "$demo_python" tools/bench/bench_overload.py --server build/release/server/fuseblock-server \
    --clients build/release/tests/bench "$@"
}

bench_memory() {  # [WORD]
  local threads
  need_torch
  build release fuseblock_rows
  for threads in 1 2; do
    "$FUSEBLOCK_TORCH_PYTHON" tools/bench/bench_rows_cpu.py --threads "$threads" \
      --library build/release/lib/libfuseblock_rows.so --filter "${1:-}"
  done
}

bench_numerics() {  # [WORD]
  need_torch
  build release fuseblock_rows numerics_bounds
  "$FUSEBLOCK_TORCH_PYTHON" tools/bench/numerics.py --device cpu --filter "${1:-}" \
    --library build/release/lib/libfuseblock_rows.so \
    --bounds build/release/tests/numerics/numerics_bounds
}

bench_faults() {
  build release engine_fault_matrix_test
  python3 tools/bench/faults.py build/release/tests/unit/server/engine/engine_fault_matrix_test
}

main() {
  need_debian build
  case ${1:-} in
    ffn | rpc | overload | memory | numerics | faults) "bench_$1" "${@:2}" ;;
    '') bench_ffn "$@" && bench_rpc "$@" ;;
    *) usage_error "no benchmark '$1'; ./dev help bench lists them" ;;
  esac
}
