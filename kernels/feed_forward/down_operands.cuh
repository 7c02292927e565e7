// What down adds and where it writes, for few tokens and for many.
#pragma once

#include "kernels/base/dtype.h"
#include "kernels/feed_forward/few_tokens_cuda.h"

namespace fuseblock {

struct DownOperands {
  const void* x;         // null: y is the product alone
  const void* residual;  // null: none
  const float* bias;     // null: none
  void* y;
  int64_t x_stride, residual_stride, y_stride;
  bool y_float;  // FP32, else the weights' dtype
};

inline void SetDownOperands(const FuseblockFewTokens& args, DownOperands& operands) {
  if (args.on_path != 0) {
    operands.x = args.x.data;
    operands.residual = args.residual.data;
  }
  operands.bias = args.down_bias;
  operands.y = args.y.data;
  operands.x_stride = args.x.stride;
  operands.residual_stride = args.residual.stride;
  operands.y_stride = args.y.stride;
  operands.y_float = args.y.dtype == static_cast<int>(DType::kF32);
}

}  // namespace fuseblock
