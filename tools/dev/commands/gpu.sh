# gpu: on a machine with a GPU: ./dev gpu test|sanitize|bench|profile [--filter WORD]
# Builds or unpacks the CUDA backend there, then runs its tests, compute-sanitizer over them, the
# benchmark beside PyTorch, or the profiler. Records go to evidence/records.

main() { exec tools/gpu/run.sh "$@"; }
