// What the row kernels refuse, with the message that says why: the invalid example of every header,
// and its neighbours.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/add_residual/add_residual.h"
#include "kernels/add_rms_norm/add_rms_norm.h"
#include "kernels/block_reduce/block_reduce.h"
#include "kernels/causal_softmax/causal_softmax.h"
#include "kernels/embedding/embedding.h"
#include "kernels/geglu/geglu.h"
#include "kernels/gelu_erf/gelu_erf.h"
#include "kernels/gelu_tanh/gelu_tanh.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/silu/silu.h"
#include "kernels/softmax/softmax.h"
#include "kernels/softmax_masked/softmax_masked.h"
#include "kernels/swiglu/swiglu.h"
#include "kernels/warp_reduce/warp_reduce.h"

namespace fuseblock {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
constexpr DType kF16 = DType::kF16;

// Operands are views into one buffer; which lie where matters only for overlap.
class Refusals : public ::testing::Test {
 protected:
  TensorView At(int64_t element, DType dtype, std::initializer_list<int64_t> dims) {
    return TensorView(buffer_ + element, dtype, dims);
  }
  void Expect(const absl::Status& status, const std::string& message,
              absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(message));
  }

  alignas(64) float buffer_[4096] = {};
  ExecutionContext context_;
};

TEST_F(Refusals, AddResidual) {
  Expect(AddResidual(context_, At(0, kF32, {2, 3}), At(64, kF32, {3, 2}), At(128, kF32, {2, 3})),
         "r: expected the shape of x [2, 3], got [3, 2]");
  Expect(AddResidual(context_, At(0, kBF16, {4}), At(64, kF16, {4}), At(128, kBF16, {4})),
         "r: expected BF16 or FP32, got FP16");
  Expect(AddResidual(context_, At(0, kF32, {4}), At(64, kF32, {4}), At(128, DType::kI32, {4})),
         "z: expected FP32, FP16 or BF16, got INT32");
  Expect(AddResidual(context_, At(0, kF32, {4}), At(64, kF32, {4}), At(2, kF32, {4})),
         "z: must be x itself or not touch it");
  TensorView transposed = At(0, kF32, {2, 3});
  transposed.stride = {1, 2};
  Expect(AddResidual(context_, transposed, At(64, kF32, {2, 3}), At(128, kF32, {2, 3})),
         "x: axis 1 must be contiguous (stride 1), got stride 2");
  TensorView repeated = At(128, kF32, {2, 3});
  repeated.stride[0] = 0;
  Expect(AddResidual(context_, At(0, kF32, {2, 3}), At(64, kF32, {2, 3}), repeated),
         "z: rows must not overlap, expected stride >= 3, got 0");
  TensorView elsewhere = At(64, kF32, {2, 3});
  elsewhere.device = {DeviceType::kCuda, 1};
  Expect(AddResidual(context_, At(0, kF32, {2, 3}), elsewhere, At(128, kF32, {2, 3})),
         "r: expected on cpu, got cuda:1");
}

TEST_F(Refusals, Unary) {
  for (const auto unary : {Silu, GeluErf, GeluTanh}) {
    Expect(unary(context_, At(0, DType::kI32, {4}), At(64, kF32, {4})),
           "x: expected FP32, got INT32");
    Expect(unary(context_, At(0, kBF16, {4}), At(64, kF16, {4})),
           "x: expected FP16 or FP32, got BF16");
    Expect(unary(context_, At(0, kF32, {4}), At(64, kF32, {2, 2})),
           "y: expected the shape of x [4], got [2, 2]");
    Expect(unary(context_, TensorView(buffer_, kF32, {}), TensorView(buffer_ + 1, kF32, {})),
           "x: expected rank >= 1, got a scalar");
    Expect(unary(context_, At(0, kF32, {4}), At(0, kBF16, {4})),
           "y: must be x itself or not touch it");
  }
}

TEST_F(Refusals, SwiGlu) {
  Expect(SwiGluPacked(context_, At(0, kF32, {2, 7}), Rounding::kFused, At(64, kF32, {2, 3})),
         "gate_up: expected [.., 2 d], an even number of columns, got [2, 7] FP32");
  Expect(SwiGlu(context_, At(0, kF32, {4}), At(64, kF32, {4}), Rounding::kHf, At(128, kBF16, {4})),
         "gate: expected BF16, got FP32");
  Expect(
      SwiGlu(context_, At(0, kBF16, {4}), At(64, kF32, {4}), Rounding::kFused, At(128, kBF16, {4})),
      "up: expected BF16, got FP32");
}

TEST_F(Refusals, GeGlu) {
  for (const GeluForm form : {GeluForm::kErf, GeluForm::kTanh}) {
    Expect(GeGlu(context_, At(0, kF32, {2, 3}), At(64, kF32, {2, 4}), form, Rounding::kFused,
                 At(128, kF32, {2, 3})),
           "up: expected the shape of gate [2, 3], got [2, 4]");
    Expect(GeGlu(context_, At(0, kF32, {4}), At(64, kF32, {4}), form, Rounding::kHf,
                 At(128, kBF16, {4})),
           "gate: expected BF16, got FP32");
    Expect(GeGlu(context_, At(0, kF32, {4}), At(64, kF32, {4}), form, Rounding::kFused,
                 At(2, kF32, {4})),
           "y: must be gate itself or not touch it");
  }
}

TEST_F(Refusals, RmsNorm) {
  const TensorView x = At(0, kF32, {2, 8}), y = At(64, kF32, {2, 8});
  for (const float eps : {0.0f, -1e-6f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Expect(RmsNorm(context_, x, std::nullopt, {eps, 0, RmsNormForm::kOnce}, y),
           "eps: expected a finite value > 0");
  }
  Expect(RmsNorm(context_, x, At(128, kF32, {9}), {}, y),
         "weight: expected a contiguous [8], got [9] FP32");
  Expect(RmsNorm(context_, x, At(128, kF32, {1, 8}), {}, y), "weight: expected a contiguous [8]");
  Expect(RmsNorm(context_, x, At(128, kF16, {8}), {}, y), "weight: expected FP32, got FP16");
  Expect(RmsNorm(context_, x, std::nullopt, {1e-6f, 1, RmsNormForm::kOnce}, y),
         "weight_offset: expected 0 without a weight, got 1");
  Expect(RmsNorm(context_, x, At(64, kF32, {8}), {}, y), "y: must not overlap weight");
}

TEST_F(Refusals, AddRmsNorm) {
  const TensorView x = At(0, kF32, {2, 8}), r = At(64, kF32, {2, 8}), y = At(128, kF32, {2, 8});
  Expect(AddRmsNorm(context_, x, At(64, kBF16, {2, 8}), std::nullopt, {}, Rounding::kFused, y, {}),
         "r: expected FP32, got BF16");
  Expect(AddRmsNorm(context_, x, r, std::nullopt, {}, Rounding::kFused, y, y),
         "residual_out: must not overlap y");
  Expect(AddRmsNorm(context_, x, r, std::nullopt, {}, Rounding::kFused, x, x),
         "residual_out: must not overlap y");
  Expect(AddRmsNorm(context_, x, r, std::nullopt, {}, Rounding::kFused, y, At(256, kBF16, {2, 8})),
         "residual_out: expected FP32, got BF16");
}

TEST_F(Refusals, LayerNorm) {
  const TensorView x = At(0, kF32, {2, 8}), y = At(64, kF32, {2, 8}), w = At(128, kF32, {8});
  for (const float eps : {0.0f, -1e-6f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Expect(LayerNorm(context_, x, w, w, eps, y), "eps: expected a finite value > 0");
  }
  Expect(LayerNorm(context_, x, w, At(192, kF32, {9}), 1e-5f, y),
         "bias: expected a contiguous [8], got [9] FP32");
  Expect(LayerNorm(context_, x, At(192, kF32, {1, 8}), {}, 1e-5f, y),
         "weight: expected a contiguous [8]");
  Expect(LayerNorm(context_, x, At(192, kF16, {8}), {}, 1e-5f, y),
         "weight: expected FP32, got FP16");
  Expect(LayerNorm(context_, At(0, kBF16, {2, 8}), At(128, kBF16, {8}), At(192, kF32, {8}), 1e-5f,
                   At(64, kBF16, {2, 8})),
         "bias: expected BF16, got FP32");
  Expect(LayerNorm(context_, x, {}, At(64, kF32, {8}), 1e-5f, y), "y: must not overlap bias");
  Expect(LayerNorm(context_, At(0, kF32, {8, 2}), {}, {}, 1e-5f, y),
         "y: expected the shape of x [8, 2], got [2, 8]");
  Expect(LayerNorm(context_, At(0, kF16, {2, 8}), {}, {}, 1e-5f, At(64, kBF16, {2, 8})),
         "x: expected BF16 or FP32, got FP16");
}

TEST_F(Refusals, Softmax) {
  Expect(Softmax(context_, At(0, kF16, {4}), At(64, kBF16, {4})),
         "x: expected BF16 or FP32, got FP16");
  Expect(Softmax(context_, At(0, kF32, {4}), At(2, kF32, {4})),
         "y: must be x itself or not touch it");
  TensorView columns = At(0, kF32, {2, 3});
  columns.stride = {6, 2};
  Expect(Softmax(context_, columns, At(64, kF32, {2, 3})),
         "x: axis 1 must be contiguous (stride 1), got stride 2");
}

TEST_F(Refusals, SoftmaxMasked) {
  const TensorView x = At(0, kF32, {2, 8}), y = At(64, kF32, {2, 8});
  Expect(SoftmaxMasked(context_, x, At(128, kF32, {8}), y),
         "mask: expected the shape of x [2, 8], got [8]");
  Expect(SoftmaxMasked(context_, x, At(128, DType::kI32, {2, 8}), y),
         "mask: expected FP32, got INT32");
  Expect(SoftmaxMasked(context_, x, At(65, kF32, {2, 8}), y),
         "y: must be mask itself or not touch it");
}

TEST_F(Refusals, CausalSoftmax) {
  const TensorView x = At(0, kF32, {2, 8}), y = At(64, kF32, {2, 8});
  Expect(CausalSoftmax(context_, At(0, kF32, {8}), 1, At(64, kF32, {8})),
         "x: expected [.., Q, KV], rank >= 2, got [8] FP32");
  for (const float scale :
       {0.0f, -1.0f, 0x1.8p126f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Expect(CausalSoftmax(context_, x, scale, y), "scale: expected a value > 0 and at most 2^126");
  }
  Expect(CausalSoftmax(context_, x, 1, At(64, kF32, {8, 2})),
         "y: expected the shape of x [2, 8], got [8, 2]");
  Expect(CausalSoftmax(context_, At(0, kF16, {2, 8}), 1, At(64, kBF16, {2, 8})),
         "x: expected BF16 or FP32, got FP16");
  Expect(CausalSoftmax(context_, x, 1, At(4, kF32, {2, 8})), "y: must be x itself or not touch it");
}

TEST_F(Refusals, RowReduce) {
  for (const auto reduce : {WarpReduceRows, BlockReduceRows}) {
    Expect(reduce(context_, ReduceOp::kSum, At(0, kF32, {3, 8}), At(64, kF32, {3})),
           "y: expected x's shape with a last axis of 1, [3, 1], got [3]");
    Expect(reduce(context_, ReduceOp::kMax, At(0, kF32, {3, 8}), At(64, kF32, {3, 8})),
           "y: expected x's shape with a last axis of 1, [3, 1], got [3, 8]");
    Expect(reduce(context_, ReduceOp::kMax, At(0, DType::kI32, {3, 8}), At(64, kF32, {3, 1})),
           "x: expected FP32, FP16 or BF16, got INT32");
    Expect(reduce(context_, ReduceOp::kSum, At(0, kBF16, {3, 8}), At(64, kF16, {3, 1})),
           "y: expected BF16 or FP32, got FP16");
    Expect(reduce(context_, ReduceOp::kSum, At(0, kF32, {3, 8}), At(0, kF32, {3, 1})),
           "y: must not overlap x");
    Expect(reduce(context_, ReduceOp::kSum, TensorView(buffer_, kF32, {}), At(64, kF32, {1})),
           "x: expected rank >= 1, got a scalar");
  }
}

TEST_F(Refusals, Embedding) {
  int32_t ids[] = {0, 4, -1, 5};
  const auto ids_view = [&](int64_t count) { return ConstTensorView(ids, DType::kI32, {count}); };
  const TensorView table = At(0, kF32, {5, 3});
  buffer_[1024] = 7;
  for (const auto& [count, id] : {std::pair<int64_t, int>{3, -1}, {4, -1}}) {
    Expect(Embedding(context_, ids_view(count), table, 1, At(1024, kF32, {count, 3})),
           "ids[2]: expected 0 <= id < 5, got -1", absl::StatusCode::kOutOfRange);
  }
  ids[2] = 0;
  Expect(Embedding(context_, ids_view(4), table, 1, At(1024, kF32, {4, 3})),
         "ids[3]: expected 0 <= id < 5, got 5", absl::StatusCode::kOutOfRange);
  EXPECT_EQ(buffer_[1024], 7) << "something was written beside a bad id";
  // The padding id may lie outside the vocabulary; no other may.
  EXPECT_TRUE(Embedding(context_, ids_view(4), table, 1, At(1024, kF32, {4, 3}), 5).ok());
  for (int64_t i = 9; i < 12; ++i) EXPECT_EQ(buffer_[1024 + i], 0);
  ids[2] = -1;
  EXPECT_FALSE(Embedding(context_, ids_view(4), table, 1, At(1024, kF32, {4, 3}), 5).ok());
  EXPECT_TRUE(Embedding(context_, ids_view(2), table, 1, At(1024, kF32, {2, 3})).ok());
  Expect(Embedding(context_, ids_view(2), table, 1, At(1024, kF32, {2, 4})),
         "y: expected ids' shape with the table's columns, [2, 3] FP32, got [2, 4] FP32");
  Expect(Embedding(context_, At(64, kF32, {2}), table, 1, At(1024, kF32, {2, 3})),
         "ids: expected INT32 or INT64, got FP32");
  Expect(Embedding(context_, ids_view(2), At(0, kF32, {15}), 1, At(1024, kF32, {2, 15})),
         "table: expected [V, H], got [15] FP32");
  Expect(Embedding(context_, ids_view(2), table, 1, At(0, kF32, {2, 3})),
         "y: must not overlap table");
}

}  // namespace
}  // namespace fuseblock
