// Every row kernel at small shapes that reach each of its code paths (a warp, 4, 8 and 16 warps a
// row, 16 with twice the elements a thread, several rounds; vectors and single elements; tails),
// each time aligned, off by one element and as rows of a wider tensor, with equal bits. Small
// enough for compute-sanitizer; values are the ladder's affair.
#include "absl/strings/str_cat.h"
#include "kernels/add_residual/add_residual.h"
#include "kernels/add_rms_norm/add_rms_norm.h"
#include "kernels/block_reduce/block_reduce.h"
#include "kernels/causal_softmax/causal_softmax.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gelu_erf/gelu_erf.h"
#include "kernels/gelu_tanh/gelu_tanh.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/silu/silu.h"
#include "kernels/softmax/softmax.h"
#include "kernels/softmax_masked/softmax_masked.h"
#include "kernels/swiglu/swiglu.h"
#include "kernels/swiglu_clamped/swiglu_clamped.h"
#include "kernels/warp_reduce/warp_reduce.h"
#include "tests/gpu/device_rows.h"

namespace fuseblock::testing {
namespace {

constexpr int64_t kRows = 3;
constexpr int64_t kColumns[] = {1, 5, 64, 576, 1027, 2056, 4104, 8200, 16392};
constexpr Layout kLayouts[] = {{0, 0}, {1, 0}, {0, 8}, {3, 5}};

class GpuKernels : public ::testing::TestWithParam<DType> {
 protected:
  // Runs in every layout for every number of columns: run(context, layout, columns) gives the
  // outputs, whose bits must be those of the first layout.
  template <typename F>
  void ForEachLayout(F&& run) {
    for (const int64_t columns : kColumns) {
      std::vector<Tensor> expected;
      for (const Layout& layout : kLayouts) {
        std::vector<Tensor> got;
        ASSERT_NO_FATAL_FAILURE(run(layout, columns, got));
        if (expected.empty()) {
          expected = std::move(got);
          continue;
        }
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(FirstDifference(expected[i], got[i]), "")
              << columns << " columns, offset " << layout.offset << ", padding " << layout.padding;
        }
      }
    }
  }

  DeviceRows Input(DType dtype, int64_t rows, int64_t columns, Layout layout, uint64_t seed) {
    return DeviceRows(Normals(dtype, rows, columns, 1, seed).Copy(layout));
  }
  void Finish(const absl::Status& status) {
    ASSERT_TRUE(status.ok()) << status;
    stream_.Wait();
  }

  GpuStream stream_;
};
INSTANTIATE_TEST_SUITE_P(DTypes, GpuKernels, ::testing::ValuesIn(kFloatDTypes),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

TEST_P(GpuKernels, AddResidual) {
  ForEachLayout([&](Layout layout, int64_t columns, std::vector<Tensor>& out) {
    DeviceRows x = Input(DType::kF32, kRows, columns, layout, 1);
    DeviceRows r = Input(GetParam(), kRows, columns, layout, 2);
    DeviceRows z(GetParam(), kRows, columns, layout);
    Finish(AddResidual(stream_.context(), x.view(), r.view(), z.view()));
    out.push_back(z.Read().Copy());
    Finish(AddResidual(stream_.context(), x.view(), r.view(), r.view()));
    out.push_back(r.Read().Copy());
    EXPECT_EQ(FirstDifference(out[0], out[1]), "") << "in place";
  });
}

// A kernel's blocks may be on the device before its predecessor has ended: what they read must not
// be older than what it wrote.
TEST(GpuChain, EachKernelSeesWhatTheOneBeforeWrote) {
  constexpr int kPairs = 5000;
  GpuStream stream;
  Tensor ones(DType::kF32, 64, 4096);
  for (int64_t row = 0; row < 64; ++row) {
    for (int64_t column = 0; column < 4096; ++column) ones.Set(row, column, 1);
  }
  DeviceRows one(ones.Copy()), a(DType::kF32, 64, 4096), b(DType::kF32, 64, 4096);
  ASSERT_TRUE(AddResidual(stream.context(), one.view(), one.view(), a.view()).ok());
  for (int i = 0; i < kPairs; ++i) {
    ASSERT_TRUE(AddResidual(stream.context(), a.view(), one.view(), b.view()).ok());
    ASSERT_TRUE(AddResidual(stream.context(), b.view(), one.view(), a.view()).ok());
  }
  stream.Wait();
  const Tensor& sum = a.Read();
  for (int64_t row = 0; row < 64; ++row) {
    for (int64_t column = 0; column < 4096; ++column) {
      ASSERT_EQ(sum.At(row, column), 2 + 2 * kPairs) << row << ", " << column;
    }
  }
}

TEST_P(GpuKernels, Unary) {
  for (const auto unary : {Silu, GeluErf, GeluTanh}) {
    ForEachLayout([&](Layout layout, int64_t columns, std::vector<Tensor>& out) {
      DeviceRows x = Input(GetParam(), kRows, columns, layout, 1);
      DeviceRows y(GetParam(), kRows, columns, layout);
      Finish(unary(stream_.context(), x.view(), y.view()));
      out.push_back(y.Read().Copy());
    });
  }
}

TEST_P(GpuKernels, SwiGlu) {
  ForEachLayout([&](Layout layout, int64_t columns, std::vector<Tensor>& out) {
    for (const Rounding rounding : {Rounding::kFused, Rounding::kHf}) {
      DeviceRows packed = Input(GetParam(), kRows, 2 * columns, layout, 1);
      DeviceRows y(GetParam(), kRows, columns, layout);
      Finish(SwiGluPacked(stream_.context(), packed.view(), rounding, y.view()));
      out.push_back(y.Read().Copy());
    }
  });
}

TEST_P(GpuKernels, SwiGluClamped) {
  ForEachLayout([&](Layout layout, int64_t columns, std::vector<Tensor>& out) {
    for (const DType in_dtype : {GetParam(), DType::kF32}) {
      DeviceRows gate_up = Input(in_dtype, kRows, 2 * columns, layout, 1);
      DeviceRows y(GetParam(), kRows, columns, layout);
      Finish(SwiGluClamped(stream_.context(), gate_up.view(), y.view()));
      out.push_back(y.Read().Copy());
    }
  });
}

TEST_P(GpuKernels, RmsNorm) {
  ForEachLayout([&](Layout layout, int64_t columns, std::vector<Tensor>& out) {
    for (const DType x_dtype : {GetParam(), DType::kF32}) {
      DeviceRows x = Input(x_dtype, kRows, columns, layout, 1);
      DeviceRows w = Input(GetParam(), 1, columns, {layout.offset, 0}, 2);
      DeviceRows y(GetParam(), kRows, columns, layout);
      Finish(RmsNorm(stream_.context(), x.view(), w.vector(), {1e-5f, 1.0f, RmsNormForm::kOnce},
                     y.view()));
      out.push_back(y.Read().Copy());
    }
  });
}

TEST_P(GpuKernels, AddRmsNorm) {
  ForEachLayout([&](Layout layout, int64_t columns, std::vector<Tensor>& out) {
    for (const DType sum_dtype : {GetParam(), DType::kF32}) {
      DeviceRows x = Input(GetParam(), kRows, columns, layout, 1);
      DeviceRows r = Input(GetParam(), kRows, columns, layout, 2);
      DeviceRows w = Input(DType::kF32, 1, columns, {layout.offset, 0}, 3);
      DeviceRows y(GetParam(), kRows, columns, layout);
      DeviceRows h(sum_dtype, kRows, columns, layout);
      const RmsNormParams params{1e-6f, 0.0f, RmsNormForm::kNormalisedFirst};
      Finish(AddRmsNorm(stream_.context(), x.view(), r.view(), w.vector(), params, Rounding::kFused,
                        y.view(), h.view()));
      out.push_back(y.Read().Copy());
      out.push_back(h.Read().Copy());
      // Over its own inputs: y over r, the sum over x where the dtype allows it.
      if (sum_dtype != GetParam()) continue;
      Finish(AddRmsNorm(stream_.context(), x.view(), r.view(), w.vector(), params, Rounding::kFused,
                        r.view(), x.view()));
      EXPECT_EQ(FirstDifference(out[out.size() - 2], r.Read().Copy()), "") << "in place";
      EXPECT_EQ(FirstDifference(out[out.size() - 1], x.Read().Copy()), "") << "in place";
    }
  });
}

TEST_P(GpuKernels, LayerNorm) {
  ForEachLayout([&](Layout layout, int64_t columns, std::vector<Tensor>& out) {
    for (const DType x_dtype : {GetParam(), DType::kF32}) {
      for (const DType w_dtype : {GetParam(), DType::kF32}) {
        DeviceRows x = Input(x_dtype, kRows, columns, layout, 1);
        DeviceRows w = Input(w_dtype, 1, columns, {layout.offset, 0}, 2);
        DeviceRows b = Input(w_dtype, 1, columns, {layout.offset, 0}, 3);
        DeviceRows y(GetParam(), kRows, columns, layout);
        Finish(LayerNorm(stream_.context(), x.view(), w.vector(), b.vector(), 1e-5f, y.view()));
        out.push_back(y.Read().Copy());
        if (x_dtype != GetParam()) continue;
        Finish(LayerNorm(stream_.context(), x.view(), w.vector(), b.vector(), 1e-5f, x.view()));
        EXPECT_EQ(FirstDifference(out.back(), x.Read().Copy()), "") << "in place";
      }
    }
  });
}

TEST_P(GpuKernels, Softmax) {
  ForEachLayout([&](Layout layout, int64_t columns, std::vector<Tensor>& out) {
    for (const DType x_dtype : {GetParam(), DType::kF32}) {
      DeviceRows x = Input(x_dtype, kRows, columns, layout, 1);
      DeviceRows y(GetParam(), kRows, columns, layout);
      Finish(Softmax(stream_.context(), x.view(), y.view()));
      out.push_back(y.Read().Copy());
      if (x_dtype != GetParam()) continue;
      Finish(Softmax(stream_.context(), x.view(), x.view()));
      EXPECT_EQ(FirstDifference(out.back(), x.Read().Copy()), "") << "in place";
    }
  });
}

TEST_P(GpuKernels, SoftmaxMasked) {
  ForEachLayout([&](Layout layout, int64_t columns, std::vector<Tensor>& out) {
    for (const DType mask_dtype : {GetParam(), DType::kF32}) {
      DeviceRows x = Input(GetParam(), kRows, columns, layout, 1);
      DeviceRows mask = Input(mask_dtype, kRows, columns, layout, 2);
      DeviceRows y(GetParam(), kRows, columns, layout);
      Finish(SoftmaxMasked(stream_.context(), x.view(), mask.view(), y.view()));
      out.push_back(y.Read().Copy());
      // One mask for all rows.
      TensorView shared = mask.view();
      shared.stride[0] = 0;
      Finish(SoftmaxMasked(stream_.context(), x.view(), shared, y.view()));
      out.push_back(y.Read().Copy());
      Finish(SoftmaxMasked(stream_.context(), x.view(), std::nullopt, y.view()));
      out.push_back(y.Read().Copy());
    }
  });
}

TEST_P(GpuKernels, RowReduce) {
  for (const auto reduce : {WarpReduceRows, BlockReduceRows}) {
    ForEachLayout([&](Layout layout, int64_t columns, std::vector<Tensor>& out) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
        DeviceRows x = Input(GetParam(), kRows, columns, layout, 1);
        DeviceRows y(DType::kF32, kRows, 1, layout);
        Finish(reduce(stream_.context(), op, x.view(), y.view()));
        out.push_back(y.Read().Copy());
      }
    });
  }
}

TEST_P(GpuKernels, CausalSoftmax) {
  ForEachLayout([&](Layout layout, int64_t columns, std::vector<Tensor>& out) {
    for (const DType x_dtype : {GetParam(), DType::kF32}) {
      DeviceRows x = Input(x_dtype, kRows, columns, layout, 1);
      DeviceRows y(GetParam(), kRows, columns, layout);
      Finish(CausalSoftmax(stream_.context(), x.view(), 0.125f, y.view()));
      out.push_back(y.Read().Copy());
      if (x_dtype != GetParam()) continue;
      Finish(CausalSoftmax(stream_.context(), x.view(), 0.125f, x.view()));
      EXPECT_EQ(FirstDifference(out.back(), x.Read().Copy()), "") << "in place";
    }
  });
}

TEST_P(GpuKernels, Embedding) {
  ForEachLayout([&](Layout layout, int64_t columns, std::vector<Tensor>& out) {
    DeviceRows table = Input(GetParam(), 11, columns, layout, 1);
    Tensor ids(DType::kI64, 1, 5);
    for (int64_t i = 0; i < 5; ++i) ids.Set(0, i, static_cast<double>((i * 7 + 10) % 11));
    DeviceRows device_ids(ids.Copy());
    for (const float scale : {1.0f, 1.5f}) {
      DeviceRows y(GetParam(), 5, columns, layout);
      Finish(Embedding(stream_.context(), device_ids.vector(), table.view(), scale, y.view()));
      out.push_back(y.Read().Copy());
      // The second id, 6, as padding.
      Finish(Embedding(stream_.context(), device_ids.vector(), table.view(), scale, y.view(), 6));
      out.push_back(y.Read().Copy());
      for (int64_t column = 0; column < columns; ++column) {
        ASSERT_EQ(out.back().Bits(1, column), 0u);
        ASSERT_EQ(out.back().Bits(2, column), out[out.size() - 2].Bits(2, column));
      }
    }
  });
}

// So many rows that they go by chunks of 4 KiB, the last of 16 bytes, where their addresses allow.
TEST_P(GpuKernels, EmbeddingOfManyRows) {
  constexpr int64_t kTokens = 2100, kTableRows = 11, kPadding = 6;
  const int64_t columns = 4096 / SizeOf(GetParam()) + 16 / SizeOf(GetParam());
  Tensor ids(DType::kI64, 1, kTokens);
  for (int64_t i = 0; i < kTokens; ++i) {
    ids.Set(0, i, static_cast<double>((i * 7 + 10) % kTableRows));
  }
  DeviceRows device_ids(ids.Copy());
  const Tensor values = Normals(GetParam(), kTableRows, columns, 1, 1);
  for (const Layout layout : {Layout{0, 0}, Layout{0, 8}, Layout{1, 0}}) {
    DeviceRows table(values.Copy(layout));
    DeviceRows y(GetParam(), kTokens, columns, layout);
    Finish(Embedding(stream_.context(), device_ids.vector(), table.view(), 1, y.view(), kPadding));
    const Tensor& got = y.Read();
    for (int64_t i = 0; i < kTokens; ++i) {
      const int64_t id = static_cast<int64_t>(ids.At(0, i));
      for (const int64_t column : {int64_t{0}, columns / 2, columns - 9, columns - 1}) {
        ASSERT_EQ(got.Bits(i, column), id == kPadding ? 0 : values.Bits(id, column))
            << "row " << i << ", column " << column << ", offset " << layout.offset;
      }
    }
  }
}

}  // namespace
}  // namespace fuseblock::testing
