# gpu: on a machine with a GPU: ./dev gpu test|sanitize|bench|profile [--filter WORD]
# Takes the CUDA backend from dist/gpu-bundle (tools/gpu/bundle.sh) or builds it, then runs its tests,
# compute-sanitizer over them, a benchmark beside PyTorch, or the profiler. Records go to
# evidence/records. bench takes as WORD part of HIDDEN/INTERMEDIATE (the feed-forward path, the default),
# rpc, host, batching, memory[/KERNEL] or numerics[/KERNEL]; profile takes memory; the others a part of a
# test's name.

main() { exec tools/gpu/run.sh "$@"; }
