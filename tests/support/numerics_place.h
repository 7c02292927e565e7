// Runs a kernel on tensors of host memory wherever an implementation needs them: in place on the
// CPU, in copies on a GPU, copied back afterwards.
#pragma once

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/base/context.h"
#include "tests/support/numerics_tensor.h"

namespace fuseblock::testing {

enum class Shape { kMatrix, kVector };  // rank 2, or rank 1: a one-row or one-column tensor

struct Placed {
  Tensor* tensor = nullptr;  // null: the operand is absent (a view without data)
  Shape shape = Shape::kMatrix;
};

using PlacedRun = absl::FunctionRef<absl::Status(const ExecutionContext& context,
                                                 absl::Span<const TensorView> views)>;

// Calls run with one view per operand, on `device`, with the context to run in; waits until the
// work is done. An operand that appears twice is one memory, so an output may be an input.
absl::Status RunPlaced(DeviceType device, const std::vector<Placed>& operands,
                       const ParallelFor& parallel_for, PlacedRun run);

// Three threads that take tasks in whatever order they come to them.
ParallelFor ThreeThreads();

}  // namespace fuseblock::testing
