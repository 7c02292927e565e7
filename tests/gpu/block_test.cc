// Served blocks on CUDA: within the derived distance of the CPU's, and the same bits for a row in
// any batch, on any stream and run to run.
#include "kernels/block/block.h"

#include <cmath>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/gpu/device_rows.h"

namespace fuseblock::testing {
namespace {

constexpr double kFp32Unit = 0x1p-24;

// A feed-forward path's weights in host memory.
struct Weights {
  Weights(DType dtype, int64_t hidden, int64_t intermediate)
      : norm(Normals(dtype, 1, hidden, 0.2, 1)),
        gate(Normals(dtype, intermediate, hidden, 1 / std::sqrt(hidden), 2)),
        up(Normals(dtype, intermediate, hidden, 1 / std::sqrt(hidden), 3)),
        down(Normals(dtype, hidden, intermediate, 1 / std::sqrt(intermediate), 4)) {
    for (int64_t i = 0; i < hidden; ++i) norm.Set(0, i, 1 + norm.At(0, i));
  }
  Tensor norm, gate, up, down;
};

std::unique_ptr<const Block> MakeBlock(BlockKind kind, Rounding rounding, const Weights& weights,
                                       Device device) {
  BlockSpec spec;
  spec.kind = kind;
  spec.dtype = weights.gate.dtype();
  spec.hidden = weights.gate.columns();
  spec.intermediate = kind == BlockKind::kNormResidual ? 0 : weights.gate.rows();
  spec.rounding = rounding;
  if (rounding == Rounding::kHf) spec.norm.form = RmsNormForm::kNormalisedFirst;
  BlockWeights roles;
  if (kind != BlockKind::kMlp) roles.norm = HostVector(weights.norm);
  if (kind != BlockKind::kNormResidual) {
    roles.gate = HostView(weights.gate);
    roles.up = HostView(weights.up);
    roles.down = HostView(weights.down);
  }
  absl::StatusOr<std::unique_ptr<const Block>> block = Block::Create(spec, roles, device);
  EXPECT_TRUE(block.ok()) << block.status();
  return block.ok() ? *std::move(block) : nullptr;
}

// Runs rows [first, first + count) of x (and residual, if any) on the GPU; the outputs as they are
// on the device.
class GpuRun {
 public:
  GpuRun(const Block& block, int64_t rows_max)
      : block_(block), workspace_(GpuBuffer(block.WorkspaceBytes(rows_max))) {}

  std::vector<Tensor> operator()(const DeviceRows& x, const DeviceRows* residual, int64_t first,
                                 int64_t count) {
    const bool sum_out = block_.spec().kind == BlockKind::kNormResidual && residual != nullptr;
    std::vector<DeviceRows> outputs;
    for (int i = 0; i < (sum_out ? 2 : 1); ++i) {
      outputs.emplace_back(block_.spec().dtype, count, block_.spec().hidden);
    }
    std::vector<ConstTensorView> inputs = {x.view(first, count)};
    if (block_.spec().kind != BlockKind::kMlp) {
      inputs.push_back(residual == nullptr ? ConstTensorView()
                                           : ConstTensorView(residual->view(first, count)));
    }
    std::vector<TensorView> views;
    for (const DeviceRows& output : outputs) views.push_back(output.view());
    views.resize(Block::Outputs(block_.spec()).size());
    const absl::Status status =
        block_.Run(stream_.context(), inputs, views,
                   absl::MakeSpan(workspace_.data(), block_.WorkspaceBytes(count)));
    EXPECT_TRUE(status.ok()) << status;
    stream_.Wait();
    std::vector<Tensor> read;
    for (DeviceRows& output : outputs) read.push_back(output.Read().Copy());
    return read;
  }

 private:
  const Block& block_;
  Buffer workspace_;
  GpuStream stream_;
};

Tensor RunOnCpu(const Block& block, const Tensor& x, const Tensor& residual) {
  Tensor y(block.spec().dtype, x.rows(), block.spec().hidden);
  const TensorView y_view(y.memory(), y.dtype(), {y.rows(), y.columns()});
  std::vector<ConstTensorView> inputs = {HostView(x)};
  if (block.spec().kind != BlockKind::kMlp) inputs.push_back(HostView(residual));
  const size_t bytes = block.WorkspaceBytes(x.rows());
  std::vector<std::byte> memory(bytes + 256);
  const size_t skip = (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256) % 256;
  const absl::Status status =
      block.Run({}, inputs, {y_view}, absl::MakeSpan(memory.data() + skip, bytes));
  EXPECT_TRUE(status.ok()) << status;
  return y;
}

// What one backend's output may differ by from the exact value of that row, to first order: every
// stored tensor rounded to the dtype (u = half its epsilon), every sum to FP32 as linear_test.cc
// says, carried through the products with absolute values.
std::vector<double> PathBound(const Weights& w, const Tensor& x, const Tensor& residual,
                              int64_t row, bool hf) {
  const int64_t hidden = w.gate.columns();
  const int64_t inner = w.gate.rows();
  const double u = Traits(w.gate.dtype()).epsilon / 2;
  const double in_units = (static_cast<double>(hidden) + 2) * kFp32Unit;
  const double inner_units = (static_cast<double>(inner) + 2) * kFp32Unit;
  const double norm_units = 60 * kFp32Unit;  // numerics' bound for a row of up to 1,024
  std::vector<double> h(hidden), n(hidden), a(inner), da(inner), bound(hidden);
  double squares = 0;
  for (int64_t k = 0; k < hidden; ++k) {
    h[k] = x.At(row, k) + residual.At(row, k);
    squares += h[k] * h[k];
  }
  const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden) + 1e-6);
  for (int64_t k = 0; k < hidden; ++k) n[k] = h[k] * scale * w.norm.At(0, k);
  const double dn = (hf ? 3 : 1) * u + norm_units;  // of |n|: the sum, n and the product
  for (int64_t j = 0; j < inner; ++j) {
    double g = 0, g_norm = 0, up = 0, up_norm = 0;
    for (int64_t k = 0; k < hidden; ++k) {
      g += w.gate.At(j, k) * n[k];
      g_norm += std::fabs(w.gate.At(j, k) * n[k]);
      up += w.up.At(j, k) * n[k];
      up_norm += std::fabs(w.up.At(j, k) * n[k]);
    }
    const double dg = (dn + in_units) * g_norm + (hf ? u * std::fabs(g) : 0);
    const double du = (dn + in_units) * up_norm + (hf ? u * std::fabs(up) : 0);
    const double s = g / (1 + std::exp(-g));
    a[j] = s * up;
    const double ds = 1.1 * dg + (hf ? u : 0) * std::fabs(s);  // |silu'| < 1.1
    da[j] =
        ds * std::fabs(up) + std::fabs(s) * du + ds * du + (u + 20 * kFp32Unit) * std::fabs(a[j]);
  }
  for (int64_t i = 0; i < hidden; ++i) {
    double d = 0, d_norm = 0, carried = 0;
    for (int64_t j = 0; j < inner; ++j) {
      d += w.down.At(i, j) * a[j];
      d_norm += std::fabs(w.down.At(i, j) * a[j]);
      carried += std::fabs(w.down.At(i, j)) * da[j];
    }
    const double rounded =
        u * std::fabs(h[i] + d) + (hf ? u * (std::fabs(d) + std::fabs(h[i])) : 0);
    // A tenth for the second order: products of two errors, powers of two crossed.
    bound[i] = 1.1 * (carried + inner_units * d_norm + rounded) +
               (w.gate.dtype() == DType::kF16 ? 0x1p-25 : 0);
  }
  return bound;
}

class GpuBlock : public ::testing::TestWithParam<std::tuple<DType, Rounding>> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  Rounding rounding() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Modes, GpuBlock,
                         ::testing::Combine(::testing::ValuesIn(kFloatDTypes),
                                            ::testing::Values(Rounding::kFused, Rounding::kHf)),
                         [](const auto& tested) {
                           return absl::StrCat(
                               std::string(Name(std::get<0>(tested.param))),
                               std::get<1>(tested.param) == Rounding::kHf ? "_hf" : "_fused");
                         });

TEST_P(GpuBlock, TheFfnPathIsWithinItsBoundOfTheCpus) {
  constexpr int64_t kRows = 3;
  const Weights weights(dtype(), 576, 1536);
  const auto on_cpu = MakeBlock(BlockKind::kFfnPath, rounding(), weights, Device());
  const auto on_gpu = MakeBlock(BlockKind::kFfnPath, rounding(), weights, kGpu);
  ASSERT_TRUE(on_cpu != nullptr && on_gpu != nullptr);
  const Tensor x = Normals(dtype(), kRows, 576, 1, 5);
  const Tensor residual = Normals(dtype(), kRows, 576, 1, 6);
  const DeviceRows device_x(x.Copy());
  const DeviceRows device_residual(residual.Copy());
  GpuRun run(*on_gpu, kRows);
  const Tensor got = run(device_x, &device_residual, 0, kRows)[0].Copy();
  const Tensor expected = RunOnCpu(*on_cpu, x, residual);
  for (int64_t row = 0; row < kRows; ++row) {
    const std::vector<double> bound =
        PathBound(weights, x, residual, row, rounding() == Rounding::kHf);
    for (int64_t i = 0; i < 576; ++i) {
      // Each of the two backends is within the bound of the exact value.
      ASSERT_LE(std::fabs(got.At(row, i) - expected.At(row, i)), 2 * bound[i])
          << "y[" << row << ", " << i << "]: CUDA " << got.At(row, i) << ", CPU "
          << expected.At(row, i);
    }
  }
}

bool SameRows(const Tensor& all, int64_t first, const Tensor& part, int64_t count) {
  const size_t row_bytes = static_cast<size_t>(all.columns() * SizeOf(all.dtype()));
  return std::memcmp(all.memory() + first * static_cast<int64_t>(row_bytes), part.memory(),
                     static_cast<size_t>(count) * row_bytes) == 0;
}

// 1,024 rows at once, again, and in batches of the sizes at positions that wander.
void ExpectRowsKeepTheirBits(const Block& block, const std::vector<int64_t>& sizes) {
  constexpr int64_t kRows = 1024;
  const DType dtype = block.spec().dtype;
  const DeviceRows x(Normals(dtype, kRows, block.spec().hidden, 1, 5));
  const DeviceRows residual(Normals(dtype, kRows, block.spec().hidden, 1, 6));
  const DeviceRows* sum = block.spec().kind == BlockKind::kMlp ? nullptr : &residual;
  GpuRun run(block, kRows);
  const std::vector<Tensor> all = run(x, sum, 0, kRows);
  const std::vector<Tensor> again = run(x, sum, 0, kRows);
  for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(FirstDifference(all[i], again[i]), "");
  for (const int64_t count : sizes) {
    const int64_t first = count * 7919 % (kRows - count + 1);
    const std::vector<Tensor> part = run(x, sum, first, count);
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_TRUE(SameRows(all[i], first, part[i], count))
          << "output " << i << ", " << count << " rows from " << first;
    }
  }
}

// On both sides of every tile and of every range of rows that has an algorithm of its own.
const std::vector<int64_t> kSizes = {1,  2,   3,   5,   8,   15,  16,  17,  31,  32,  33,  64,  65,
                                     96, 127, 128, 129, 200, 256, 300, 511, 512, 513, 777, 1023};

TEST_P(GpuBlock, ARowDoesNotKnowItsBatchOf1To1024) {
  const Weights weights(dtype(), 576, 1536);
  std::vector<int64_t> every;
  for (int64_t count = 1; count <= 1024; ++count) every.push_back(count);
  for (const BlockKind kind : {BlockKind::kNormResidual, BlockKind::kMlp, BlockKind::kFfnPath}) {
    const auto block = MakeBlock(kind, rounding(), weights, kGpu);
    ASSERT_NE(block, nullptr);
    const auto& sizes = kind == BlockKind::kFfnPath ? every : kSizes;
    ASSERT_NO_FATAL_FAILURE(ExpectRowsKeepTheirBits(*block, sizes)) << std::string(Name(kind));
  }
}

TEST_P(GpuBlock, ALargePathsRowDoesNotKnowItsBatch) {
  const Weights weights(dtype(), 4096, 14336);
  const auto block = MakeBlock(BlockKind::kFfnPath, rounding(), weights, kGpu);
  ASSERT_NE(block, nullptr);
  ExpectRowsKeepTheirBits(*block, kSizes);
}

TEST_P(GpuBlock, NoRowsAreNoWork) {
  const Weights weights(dtype(), 64, 128);
  for (const BlockKind kind : {BlockKind::kNormResidual, BlockKind::kMlp, BlockKind::kFfnPath}) {
    const auto block = MakeBlock(kind, rounding(), weights, kGpu);
    ASSERT_NE(block, nullptr);
    const DeviceRows x(dtype(), 0, 64);
    GpuRun run(*block, 0);
    run(x, nullptr, 0, 0);
  }
}

TEST_P(GpuBlock, ManyLanesAtATimeChangeNoBit) {
  const Weights weights(dtype(), 576, 1536);
  const auto block = MakeBlock(BlockKind::kFfnPath, rounding(), weights, kGpu);
  ASSERT_NE(block, nullptr);
  const DeviceRows x(Normals(dtype(), 256, 576, 1, 5));
  GpuRun alone(*block, 256);
  const Tensor expected = alone(x, nullptr, 0, 256)[0].Copy();
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> lanes;
  for (size_t lane = 0; lane < wrong.size(); ++lane) {
    lanes.emplace_back([&, lane] {
      GpuRun run(*block, 256);
      for (int64_t round = 0; round < 40; ++round) {
        const int64_t count = 1 + (round * 29 + static_cast<int64_t>(lane) * 61) % 200;
        const int64_t first = round % (257 - count);
        const std::vector<Tensor> got = run(x, nullptr, first, count);
        wrong[lane] += !SameRows(expected, first, got[0], count);
      }
    });
  }
  for (std::thread& lane : lanes) lane.join();
  for (const int count : wrong) EXPECT_EQ(count, 0);
}

}  // namespace
}  // namespace fuseblock::testing
