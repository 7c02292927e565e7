// What the kernels that reduce a row to one value have in common: arguments, checks, and the
// implementations on the CPU.
#pragma once

#include "kernels/base/implementation.h"
#include "kernels/base/row_reduce_cuda.h"

namespace fuseblock {

enum class ReduceOp { kSum, kMax };

struct RowReduceArgs {
  ReduceOp op;
  ConstRows x;
  Rows y;  // one column
  DType x_dtype, y_dtype;
};

// x: FP32, FP16 or BF16, rank >= 1, last axis contiguous, leading axes collapsible to rows. y: x's
// shape with a last axis of 1, of x's dtype or FP32, apart from x.
absl::StatusOr<RowReduceArgs> CheckRowReduce(ReduceOp op, const ConstTensorView& x,
                                             const TensorView& y);

// Checks, then runs the first implementation that has no objection. Zero rows: OK.
absl::Status RunRowReduce(const char* kernel, absl::Span<const Implementation<RowReduceArgs>> list,
                          const ExecutionContext& context, ReduceOp op, const ConstTensorView& x,
                          const TensorView& y);

int LaunchRowReduce(FuseblockRowReduce* launch, const RowReduceArgs& args, void* stream);

// In FP64, rounded once.
absl::Status RowReduceReference(const ExecutionContext& context, const RowReduceArgs& args);
// In FP32 on vectors (row_reduce_cpu.cc).
absl::Status RowReduceHighway(const ExecutionContext& context, const RowReduceArgs& args);

}  // namespace fuseblock
