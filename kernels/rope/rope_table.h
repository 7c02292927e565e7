// The angles of a rotary position embedding: one inverse frequency per pair of columns, made once
// per model and device.
//
// Pair i of r/2 turns by position * f[i] radians. Without scaling f[i] = theta^(-2i/r). Scalings
// stretch a model's context from original_max_position by `factor`:
//   kLinear  f / factor (Chen et al., 2023, https://arxiv.org/abs/2306.15595).
//   kLlama3  by the wavelength w = 2 pi / f, L = original_max_position: f where w < L / high, f /
//            factor where w > L / low, between them s f + (1 - s) f / factor with
//            s = (L / w - low) / (high - low) (Llama 3.1).
//   kYarn    m f + (1 - m) f / factor; m falls from 1 to 0 over the pairs from d(beta_fast) to
//            d(beta_slow), d(b) = r ln(L / (2 pi b)) / (2 ln theta), rounded outwards if
//            `truncate`; cos and sin are multiplied by the attention factor, 0.1 ln(factor) + 1
//            unless given (Peng et al., 2023, https://arxiv.org/abs/2309.00071).
// All in FP64. Angles are never stored: a kernel takes position * f[i] in FP64, reduces it to
// [-pi/4, pi/4] exactly and rounds cos and sin to FP32 once, so that position 1,000,000 is as exact
// as position 1, and the longest context costs no memory.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/buffer.h"

namespace fuseblock {

enum class RopeScalingKind { kNone, kLinear, kLlama3, kYarn };

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1;                       // >= 1, all but kNone
  int64_t original_max_position = 0;       // >= 1, kLlama3 and kYarn
  double low_freq_factor = 1;              // kLlama3: 0 < low < high
  double high_freq_factor = 4;             // kLlama3
  double beta_fast = 32;                   // kYarn: 0 < slow <= fast
  double beta_slow = 1;                    // kYarn
  bool truncate = true;                    // kYarn
  std::optional<double> attention_factor;  // kYarn: > 0
};

struct RopeParams {
  int64_t rotary_dims = 0;   // r: even, >= 0; 0 turns nothing
  int64_t max_position = 0;  // positions are in [0, max_position)
  double theta = 10000;      // > 1
  RopeScaling scaling;
};

// Beyond it an FP64 angle's error, position * 2^-52, would reach half an FP32 last place.
inline constexpr int64_t kRopeMaxPosition = int64_t{1} << 27;

// Move-only; constant after Make; used by many calls and threads at a time.
class RopeTable {
 public:
  // INVALID_ARGUMENT naming the parameter, its range and what came ("rotary_dims: expected an even
  // number >= 0, got 3"); RESOURCE_EXHAUSTED when the device has no room.
  static absl::StatusOr<RopeTable> Make(Device device, const RopeParams& params);

  Device device() const { return device_; }
  int64_t rotary_dims() const { return static_cast<int64_t>(2 * frequencies_.size()); }
  int64_t max_position() const { return max_position_; }
  double attention_factor() const { return attention_factor_; }
  // [r/2], on the host.
  const std::vector<double>& inverse_frequencies() const { return frequencies_; }
  // The same on device(); null for r = 0.
  const double* data() const;

 private:
  Device device_;
  int64_t max_position_ = 0;
  double attention_factor_ = 1;
  std::vector<double> frequencies_;
  Buffer on_device_;  // CUDA only
};

}  // namespace fuseblock
