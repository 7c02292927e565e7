// A block's weights: checked against the spec, converted to the compute dtype, moved to the device.
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/half.h"
#include "kernels/base/status.h"
#include "kernels/block/kinds.h"

namespace fuseblock {
namespace {

// OK when the role's weight is there, in host memory, floating point and of that shape.
absl::Status CheckRole(const char* role, const std::optional<ConstTensorView>& weight,
                       std::initializer_list<int64_t> shape) {
  const std::string expected = absl::StrCat(role, ": expected [", absl::StrJoin(shape, ", "), "]");
  if (!weight.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(expected, ", got no weight"));
  }
  if (weight->dims() != absl::MakeConstSpan(shape.begin(), shape.size())) {
    return absl::InvalidArgumentError(absl::StrCat(expected, ", got ", Describe(*weight)));
  }
  if (Traits(weight->dtype).epsilon == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(expected, " of FP32, FP16 or BF16, got ", Describe(*weight)));
  }
  if (weight->device.type != DeviceType::kCpu) {
    return absl::InvalidArgumentError(
        absl::StrCat(role, ": expected host memory, got ", DeviceName(weight->device)));
  }
  return absl::OkStatus();
}

template <typename From, typename To>
void ConvertRow(const std::byte* from, int64_t count, std::byte* to) {
  for (int64_t i = 0; i < count; ++i) {  // a mapped checkpoint may lie at any address
    From value;
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof(From)), sizeof(From));
    const To converted = FromFloat<To>(ToFloat(value));
    std::memcpy(to + i * static_cast<int64_t>(sizeof(To)), &converted, sizeof(To));
  }
}

// The weight, dense, in the dtype, in host memory.
absl::StatusOr<Buffer> Converted(const char* role, const ConstTensorView& weight, DType dtype,
                                 const ParallelFor& parallel_for) {
  absl::StatusOr<ConstRows> rows = AsRows(role, weight);
  if (!rows.ok()) return rows.status();
  const int64_t from_size = SizeOf(weight.dtype);
  const int64_t to_size = SizeOf(dtype);
  absl::StatusOr<Buffer> out = Buffer::Allocate(
      MemoryKind::kHost, static_cast<size_t>(weight.elements()) * static_cast<size_t>(to_size));
  if (!out.ok()) return out.status();
  parallel_for(rows->rows, [&](int64_t row) {
    const std::byte* from =
        static_cast<const std::byte*>(rows->data) + row * rows->stride * from_size;
    std::byte* to = out->data() + row * rows->cols * to_size;
    if (weight.dtype == dtype) {  // bits as they are, signalling NaNs too
      std::memcpy(to, from, static_cast<size_t>(rows->cols * to_size));
      return;
    }
    VisitFloat(weight.dtype, [&](auto source) {
      VisitFloat(dtype, [&](auto target) {
        ConvertRow<decltype(source), decltype(target)>(from, rows->cols, to);
      });
    });
  });
  return out;
}

// The role's name before an error of what is made of its weight.
absl::Status Named(const char* role, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(role, ": ", status.message()));
}

absl::StatusOr<Buffer> OnDevice(Buffer host, Device device) {
  if (device.type == DeviceType::kCpu) return host;
  return Buffer::CopyToDevice(host.data(), host.size(), device);
}

absl::Status PrepareTensor(const char* role, const std::optional<ConstTensorView>& weight,
                           std::initializer_list<int64_t> shape, DType dtype, Device device,
                           const ParallelFor& parallel_for, DeviceTensor& out) {
  FUSEBLOCK_RETURN_IF_ERROR(CheckRole(role, weight, shape));
  absl::StatusOr<Buffer> host = Converted(role, *weight, dtype, parallel_for);
  if (!host.ok()) return host.status();
  absl::StatusOr<Buffer> placed = OnDevice(*std::move(host), device);
  if (!placed.ok()) return Named(role, placed.status());
  out.buffer = *std::move(placed);
  out.view = ConstTensorView(out.buffer.data(), dtype,
                             absl::MakeConstSpan(shape.begin(), shape.size()), device);
  return absl::OkStatus();
}

absl::Status PrepareLinear(const char* role, const std::optional<ConstTensorView>& weight,
                           const char* bias_role, const std::optional<ConstTensorView>& bias,
                           std::initializer_list<int64_t> shape, DType dtype, Device device,
                           const ParallelFor& parallel_for, int segments, LinearWeight& out) {
  FUSEBLOCK_RETURN_IF_ERROR(CheckRole(role, weight, shape));
  ConstTensorView source = *weight;
  Buffer converted;
  if (weight->dtype != dtype) {
    absl::StatusOr<Buffer> buffer = Converted(role, *weight, dtype, parallel_for);
    if (!buffer.ok()) return buffer.status();
    converted = *std::move(buffer);
    source =
        ConstTensorView(converted.data(), dtype, absl::MakeConstSpan(shape.begin(), shape.size()));
  }
  std::optional<ConstTensorView> bias_source;
  Buffer bias_converted;
  if (bias.has_value()) {
    FUSEBLOCK_RETURN_IF_ERROR(CheckRole(bias_role, bias, {*shape.begin()}));
    absl::StatusOr<Buffer> buffer = Converted(bias_role, *bias, dtype, parallel_for);
    if (!buffer.ok()) return buffer.status();
    bias_converted = *std::move(buffer);
    bias_source = ConstTensorView(bias_converted.data(), dtype, {*shape.begin()});
  }
  absl::StatusOr<LinearWeight> prepared = LinearWeight::Prepare(
      device, source, bias_source, WeightLayout::kOutIn, parallel_for, segments);
  if (!prepared.ok()) return Named(role, prepared.status());
  out = *std::move(prepared);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const FeedForwardWeights>> PrepareMlp(
    const BlockSpec& spec, const BlockWeights& weights, Device device,
    const ParallelFor& parallel_for, bool copies) {
  auto mlp = std::make_shared<FeedForwardWeights>();
  mlp->form = *FormOf(spec.activation, spec.gated);
  const int64_t h = spec.hidden;
  const int64_t i = spec.intermediate;
  const bool biases = weights.gate_bias || weights.up_bias || weights.down_bias;
  const std::string why_not =
      FewTokens::WhyNot(device, mlp->form, spec.dtype, h, i, spec.rounding, biases);
  const bool packs = why_not.empty();
  if (!packs) mlp->no_few = why_not;
  // The products of many tokens sum as the kernels for few tokens do.
  const int down_segments = packs ? FewTokens::PlanFor(device, mlp->form, h, i).segments : 1;
  const auto prepare = [&](const char* role, const std::optional<ConstTensorView>& weight,
                           const char* bias_role, const std::optional<ConstTensorView>& bias,
                           std::initializer_list<int64_t> shape, int segments, LinearWeight& out) {
    return PrepareLinear(role, weight, bias_role, bias, shape, spec.dtype, device, parallel_for,
                         segments, out);
  };
  absl::Status s;
  if (spec.gated) {
    s = prepare("gate", weights.gate, "gate_bias", weights.gate_bias, {i, h}, 1, mlp->gate);
  }
  if (s.ok()) s = prepare("up", weights.up, "up_bias", weights.up_bias, {i, h}, 1, mlp->up);
  if (s.ok()) {
    s = prepare("down", weights.down, "down_bias", weights.down_bias, {h, i}, down_segments,
                mlp->down);
  }
  if (s.ok() && packs && copies) s = PrepareFewTokens(*mlp);
  if (packs && !copies) mlp->no_few = "is not packed: there is no room for a copy";
  if (!s.ok()) return s;
  return mlp;
}

// What tells one prepared feed-forward from another: the host memory that it was made from and how
// it is laid out, the dtype, the function, the rounding and the device.
using MlpKey = std::vector<int64_t>;

MlpKey KeyOf(const BlockSpec& spec, const BlockWeights& weights, Device device) {
  MlpKey key = {spec.hidden,
                spec.intermediate,
                static_cast<int64_t>(spec.dtype),
                static_cast<int64_t>(spec.activation),
                spec.gated,
                static_cast<int64_t>(spec.rounding),
                static_cast<int64_t>(device.type),
                device.index};
  for (const auto* weight : {&weights.gate, &weights.up, &weights.down, &weights.gate_bias,
                             &weights.up_bias, &weights.down_bias}) {
    const ConstTensorView view = weight->value_or(ConstTensorView());
    key.push_back(static_cast<int64_t>(reinterpret_cast<intptr_t>(view.data)));
    key.push_back(static_cast<int64_t>(view.dtype));
    key.insert(key.end(), view.shape.begin(), view.shape.begin() + view.rank);
    key.insert(key.end(), view.stride.begin(), view.stride.begin() + view.rank);
  }
  return key;
}

}  // namespace

// Weak: the cache finds what blocks hold and keeps nothing alive.
struct BlockWeightCache::Impl {
  bool copies;
  std::map<MlpKey, std::weak_ptr<const FeedForwardWeights>> mlps;
};
BlockWeightCache::BlockWeightCache(bool copies) : impl_(std::make_unique<Impl>(Impl{copies, {}})) {}
BlockWeightCache::~BlockWeightCache() = default;

int64_t Block::CopyBytes(const BlockSpec& spec, Device device) {
  const std::optional<FeedForwardForm> form = FormOf(spec.activation, spec.gated);
  const bool packs = EntryOf(spec.kind).has_mlp && form.has_value() &&
                     FewTokens::WhyNot(device, *form, spec.dtype, spec.hidden, spec.intermediate,
                                       spec.rounding, false)
                         .empty();
  return packs ? FewTokens::PlanFor(device, *form, spec.hidden, spec.intermediate).bytes() : 0;
}

absl::Status PrepareWeights(const KindEntry& entry, const BlockSpec& spec,
                            const BlockWeights& weights, Device device,
                            const ParallelFor& parallel_for, BlockWeightCache* cache,
                            Block::Prepared& prepared) {
  if (entry.has_norm) {
    absl::Status s = PrepareTensor("norm", weights.norm, {spec.hidden}, spec.dtype, device,
                                   parallel_for, prepared.norm);
    if (!s.ok()) return s;
    prepared.bytes += prepared.norm.buffer.size();
  }
  if (entry.has_mlp) {
    std::weak_ptr<const FeedForwardWeights> unshared;
    std::weak_ptr<const FeedForwardWeights>& slot =
        cache == nullptr ? unshared : cache->impl().mlps[KeyOf(spec, weights, device)];
    prepared.mlp = slot.lock();
    if (prepared.mlp == nullptr) {
      const bool copies = cache == nullptr || cache->impl().copies;
      auto mlp = PrepareMlp(spec, weights, device, parallel_for, copies);
      if (!mlp.ok()) return mlp.status();
      prepared.mlp = *std::move(mlp);
      if (spec.gated) prepared.bytes += prepared.mlp->gate.bytes();
      prepared.bytes += prepared.mlp->up.bytes() + prepared.mlp->down.bytes();
      if (prepared.mlp->few != nullptr) prepared.bytes += prepared.mlp->few->bytes();
      slot = prepared.mlp;
    }
  }
  if (entry.has_table) {
    absl::Status s = PrepareTensor("table", weights.table, {spec.vocabulary, spec.hidden},
                                   spec.dtype, device, parallel_for, prepared.table);
    if (!s.ok()) return s;
    prepared.bytes += prepared.table.buffer.size();
  }
  return absl::OkStatus();
}

}  // namespace fuseblock
