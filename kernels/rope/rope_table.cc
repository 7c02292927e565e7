// Inverse frequencies under each scaling, and their way to the device.
#include "kernels/rope/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "kernels/base/status.h"

namespace fuseblock {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

// `value` fits when `ok`; NaN makes every comparison false and so fits nowhere.
template <typename T>
absl::Status Expect(bool ok, const char* name, const char* expected, T value) {
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rope ", name, ": expected ", expected, ", got ", value));
}

bool FiniteAbove(double value, double bound) { return std::isfinite(value) && value > bound; }

absl::Status CheckScaling(const RopeScaling& scaling) {
  if (scaling.kind == RopeScalingKind::kNone) return absl::OkStatus();
  FUSEBLOCK_RETURN_IF_ERROR(Expect(std::isfinite(scaling.factor) && scaling.factor >= 1,
                                   "scaling factor", "a finite value >= 1", scaling.factor));
  if (scaling.kind == RopeScalingKind::kLinear) return absl::OkStatus();
  FUSEBLOCK_RETURN_IF_ERROR(Expect(scaling.original_max_position >= 1, "original_max_position",
                                   "a value >= 1", scaling.original_max_position));
  if (scaling.kind == RopeScalingKind::kLlama3) {
    FUSEBLOCK_RETURN_IF_ERROR(Expect(FiniteAbove(scaling.low_freq_factor, 0), "low_freq_factor",
                                     "a finite value > 0", scaling.low_freq_factor));
    return Expect(FiniteAbove(scaling.high_freq_factor, scaling.low_freq_factor),
                  "high_freq_factor", "a finite value above low_freq_factor",
                  scaling.high_freq_factor);
  }
  FUSEBLOCK_RETURN_IF_ERROR(Expect(FiniteAbove(scaling.beta_slow, 0), "beta_slow",
                                   "a finite value > 0", scaling.beta_slow));
  FUSEBLOCK_RETURN_IF_ERROR(
      Expect(std::isfinite(scaling.beta_fast) && scaling.beta_fast >= scaling.beta_slow,
             "beta_fast", "a finite value >= beta_slow", scaling.beta_fast));
  const double attention_factor = scaling.attention_factor.value_or(1);
  return Expect(FiniteAbove(attention_factor, 0), "attention_factor", "a finite value > 0",
                attention_factor);
}

absl::Status CheckParams(const RopeParams& params) {
  FUSEBLOCK_RETURN_IF_ERROR(Expect(params.rotary_dims >= 0 && params.rotary_dims % 2 == 0,
                                   "rotary_dims", "an even number >= 0", params.rotary_dims));
  FUSEBLOCK_RETURN_IF_ERROR(
      Expect(params.max_position >= 1 && params.max_position <= kRopeMaxPosition, "max_position",
             "1 .. 2^27", params.max_position));
  FUSEBLOCK_RETURN_IF_ERROR(
      Expect(FiniteAbove(params.theta, 1), "theta", "a finite value > 1", params.theta));
  return CheckScaling(params.scaling);
}

double Llama3Frequency(const RopeScaling& scaling, double frequency) {
  const double turns = static_cast<double>(scaling.original_max_position) * frequency / kTurn;
  const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
  const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
  return kept * frequency + (1 - kept) * frequency / scaling.factor;
}

struct YarnRamp {  // over the pairs: 0 up to `low`, 1 from `high` on
  double low, high;

  double At(int64_t pair) const {
    return std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  }
};

YarnRamp YarnRampOf(const RopeParams& params) {
  const RopeScaling& scaling = params.scaling;
  const double dims = static_cast<double>(params.rotary_dims);
  const auto pair_of = [&](double turns) {
    const double ratio = static_cast<double>(scaling.original_max_position) / (kTurn * turns);
    return dims * std::log(ratio) / (2 * std::log(params.theta));
  };
  double low = pair_of(scaling.beta_fast), high = pair_of(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1);
  // A step, as transformers makes it, where the two meet.
  return {low, low == high ? high + 0.001 : high};
}

std::vector<double> Frequencies(const RopeParams& params) {
  const RopeScaling& scaling = params.scaling;
  const YarnRamp ramp = scaling.kind == RopeScalingKind::kYarn ? YarnRampOf(params) : YarnRamp{};
  std::vector<double> frequencies;
  for (int64_t pair = 0; pair < params.rotary_dims / 2; ++pair) {
    const double exponent = static_cast<double>(2 * pair) / static_cast<double>(params.rotary_dims);
    double frequency = 1 / std::pow(params.theta, exponent);
    switch (scaling.kind) {
      case RopeScalingKind::kNone:
        break;
      case RopeScalingKind::kLinear:
        frequency /= scaling.factor;
        break;
      case RopeScalingKind::kLlama3:
        frequency = Llama3Frequency(scaling, frequency);
        break;
      case RopeScalingKind::kYarn: {
        const double stretched = ramp.At(pair);
        frequency = stretched * frequency / scaling.factor + (1 - stretched) * frequency;
        break;
      }
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

}  // namespace

absl::StatusOr<RopeTable> RopeTable::Make(Device device, const RopeParams& params) {
  FUSEBLOCK_RETURN_IF_ERROR(CheckParams(params));
  RopeTable table;
  table.device_ = device;
  table.max_position_ = params.max_position;
  table.frequencies_ = Frequencies(params);
  if (params.scaling.kind == RopeScalingKind::kYarn) {
    table.attention_factor_ =
        params.scaling.attention_factor.value_or(0.1 * std::log(params.scaling.factor) + 1);
  }
  if (device.type == DeviceType::kCuda) {
    FUSEBLOCK_ASSIGN_OR_RETURN(
        table.on_device_, Buffer::CopyToDevice(table.frequencies_.data(),
                                               table.frequencies_.size() * sizeof(double), device));
  }
  return table;
}

const double* RopeTable::data() const {
  if (device_.type == DeviceType::kCpu) return frequencies_.data();
  return reinterpret_cast<const double*>(on_device_.data());
}

}  // namespace fuseblock
