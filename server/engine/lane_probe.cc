#include "server/engine/lane_probe.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fuseblock {
namespace {

constexpr int64_t kRows = 4;  // a token bucket: as many as are computed
constexpr int64_t kColumns = 256;
// A row of x; the residual adds the quarter that makes it a whole number.
constexpr float kFraction = 0.75f;
// Between the rounding of a few FP32 operations and anything that could be called a fault.
constexpr double kTolerance = 1e-5;

float Weight(int64_t column) { return static_cast<float>(column % 7 + 1); }

}  // namespace

LaneProbe::LaneProbe(const std::vector<Device>& devices) {
  block_.name = "probe";
  block_.spec.kind = BlockKind::kNormResidual;
  block_.spec.dtype = DType::kF32;
  block_.spec.hidden = kColumns;
  std::vector<float> norm(kColumns);
  for (int64_t c = 0; c < kColumns; ++c) norm[c] = Weight(c);
  BlockWeights weights;
  weights.norm = ConstTensorView(norm.data(), DType::kF32, {kColumns});
  std::vector<Device> places = devices;
  // Lanes that only stand in for a device compute with the CPU's blocks.
  if (std::find(places.begin(), places.end(), Device{}) == places.end()) places.push_back({});
  for (const Device device : places) {
    auto block = Block::Create(block_.spec, weights, device);
    if (block.ok()) block_.blocks.push_back(*std::move(block));
  }
}

LaneBytes LaneProbe::BytesNeeded() const {
  const size_t tensor = AlignTensor(kRows * kColumns * sizeof(float));
  LaneBytes bytes{2 * tensor, 2 * tensor, 0};
  for (const auto& block : block_.blocks) {
    bytes.workspace = std::max(bytes.workspace, block->WorkspaceBytes(kRows));
  }
  return bytes;
}

absl::Status LaneProbe::Run(Lane& lane) const {
  LaneBatch batch;
  batch.block = lane.BlockOf(block_);
  if (batch.block == nullptr) {
    return absl::FailedPreconditionError("the probe's block is not on this device");
  }
  std::vector<float> x(kRows * kColumns), residual(x.size(), 1 - kFraction);
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t row = i / kColumns;
    x[i] = static_cast<float>(row) + kFraction;
  }
  std::vector<float> y(x.size(), NAN), h(x.size(), NAN);
  batch.rows = kRows;
  batch.input_count = batch.output_count = 2;
  batch.inputs = {ConstTensorView(x.data(), DType::kF32, {kRows, kColumns}),
                  ConstTensorView(residual.data(), DType::kF32, {kRows, kColumns})};
  batch.outputs = {TensorView(y.data(), DType::kF32, {kRows, kColumns}),
                   TensorView(h.data(), DType::kF32, {kRows, kColumns})};
  LaneTimes times;
  if (absl::Status status = lane.Run(batch, &times); !status.ok()) return status;
  for (int64_t r = 0; r < kRows; ++r) {
    const double sum = static_cast<double>(r + 1);
    const double scale = sum / std::sqrt(sum * sum + block_.spec.norm.eps);
    for (int64_t c = 0; c < kColumns; ++c) {
      const size_t at = static_cast<size_t>(r * kColumns + c);
      const double expected = scale * Weight(c);
      // Written so that NaN is wrong.
      const bool right =
          h[at] == static_cast<float>(sum) && std::abs(y[at] - expected) <= kTolerance * expected;
      if (right) continue;
      return absl::DataLossError(absl::StrCat("the probe's row ", r, ", column ", c, ": expected ",
                                              sum, " and ", expected, ", got ", h[at], " and ",
                                              y[at]));
    }
  }
  return absl::OkStatus();
}

}  // namespace fuseblock
