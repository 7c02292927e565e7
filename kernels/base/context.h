// Where a kernel runs and with what: given by the caller, owned by the caller.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "kernels/base/tensor_view.h"

namespace fuseblock {

// A caller's threads. Kernels make none of their own: they cut their work into independent tasks
// and hand them over. `run` calls task(0) .. task(tasks - 1), each once, in any order, on any of
// its threads, and returns when all have ended. Without `run` the calling thread does them in
// order. A kernel's bits never depend on `threads`. A thread needs 1.25 MiB of stack: linear.h.
struct ParallelFor {
  int threads = 1;
  void* pool = nullptr;
  void (*run)(void* pool, int64_t tasks, absl::FunctionRef<void(int64_t)> task) = nullptr;

  void operator()(int64_t tasks, absl::FunctionRef<void(int64_t)> task) const {
    if (run != nullptr && threads > 1 && tasks > 1) {
      run(pool, tasks, task);
    } else {
      for (int64_t i = 0; i < tasks; ++i) task(i);
    }
  }
};

// On the CPU a kernel has finished when its call returns. On CUDA the call enqueues on `stream` (a
// cudaStream_t of `device`) and returns; an error that the device meets later shows when the stream
// is synchronised.
struct ExecutionContext {
  Device device;
  void* stream = nullptr;
  ParallelFor parallel_for;
};

}  // namespace fuseblock
