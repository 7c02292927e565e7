// Packs a feed-forward's weights for Hopper and proves on them that a row gets the same bits at
// every width of few tokens, in blocks of them, among many and from the composed products: with
// probe rows, FP32 outputs.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/cuda.h"
#include "kernels/base/status.h"
#include "kernels/feed_forward/few_tokens_trial.h"

namespace fuseblock {
namespace {

constexpr int64_t kProbeRows = 2 * kFewTokensMax + 44;  // of which a block is not full
// What the values of another order of summation may be off by, as a norm: far above what FP32 and
// one rounding of the product leave, far below what a wrong kernel gives.
constexpr double kOtherOrder = 0x1p-6;

enum class Equality { kBits, kValues, kNone };

// As few more than kProbeRows as the kernels for many tokens take both products of.
int64_t ManyProbeRows(const FewTokensPlan& plan) {
  int64_t rows = kProbeRows;
  for (TokenWidths of = CutTokens(plan, rows); of.gate_up + of.down != 0;
       of = CutTokens(plan, rows)) {
    rows += kTokenBlock;
  }
  return rows;
}

class Proof {
 public:
  Proof(const FeedForwardWeights& weights, int64_t rows)
      : weights_(weights), device_(weights.device()), rows_(rows) {}
  Proof(const Proof&) = delete;
  Proof& operator=(const Proof&) = delete;
  ~Proof() {
    if (stream_ != nullptr) CudaRuntime()->stream_destroy(device_.index, stream_);
  }

  // With room for the composed products and for `packed`.
  absl::Status Prepare(const FewTokens& packed) {
    const FuseblockCudaRuntime& cuda = *CudaRuntime();
    FUSEBLOCK_RETURN_IF_ERROR(
        CudaStatus("creating a stream", cuda.stream_create(device_.index, &stream_)));
    const int64_t hidden = weights_.hidden();
    FUSEBLOCK_ASSIGN_OR_RETURN(x_, ProbeRows(weights_, rows_));
    FUSEBLOCK_ASSIGN_OR_RETURN(
        y_,
        Buffer::Allocate(MemoryKind::kDevice, static_cast<size_t>(rows_ * hidden) * 4, device_));
    const size_t workspace_bytes =
        std::max(FeedForwardWorkspaceBytes(weights_, rows_, Rounding::kFused),
                 FewTokensWorkspaceBytes(packed, rows_));
    FUSEBLOCK_ASSIGN_OR_RETURN(workspace_,
                               Buffer::Allocate(MemoryKind::kDevice, workspace_bytes, device_));
    return absl::OkStatus();
  }

  // The first `rows` probe rows' outputs as the weights' best implementation gives them.
  absl::StatusOr<std::vector<float>> Outputs(int64_t rows) {
    const int64_t hidden = weights_.hidden();
    const ConstTensorView x(x_.data(), weights_.dtype(), {rows, hidden}, device_);
    const TensorView y(y_.data(), DType::kF32, {rows, hidden}, device_);
    FUSEBLOCK_RETURN_IF_ERROR(FeedForward({device_, stream_, {}}, x, weights_, Rounding::kFused, y,
                                          absl::MakeSpan(workspace_.data(), workspace_.size())));
    std::vector<float> values(static_cast<size_t>(rows * hidden));
    const FuseblockCudaRuntime& cuda = *CudaRuntime();
    FUSEBLOCK_RETURN_IF_ERROR(CudaStatus(
        "reading probe rows",
        cuda.copy_async(device_.index, values.data(), y_.data(), values.size() * 4, stream_)));
    FUSEBLOCK_RETURN_IF_ERROR(
        CudaStatus("reading probe rows", cuda.stream_synchronize(device_.index, stream_)));
    return values;
  }

 private:
  const FeedForwardWeights& weights_;
  Device device_;
  int64_t rows_;
  void* stream_ = nullptr;
  Buffer x_, y_, workspace_;
};

// Of a's rows and the first of b's; any NaN is any other.
Equality Compare(const std::vector<float>& a, const std::vector<float>& b) {
  bool same = true;
  double error_squares = 0;
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool nan = std::isnan(a[i]);
    if (nan && std::isnan(b[i])) continue;
    if (std::bit_cast<uint32_t>(a[i]) == std::bit_cast<uint32_t>(b[i])) continue;
    same = false;
    error_squares += std::pow(static_cast<double>(a[i]) - b[i], 2);
  }
  if (same) return Equality::kBits;
  for (size_t i = 0; i < a.size(); ++i) squares += static_cast<double>(b[i]) * b[i];
  const bool near = std::sqrt(error_squares) <= kOtherOrder * std::sqrt(squares);
  return near ? Equality::kValues : Equality::kNone;
}

}  // namespace

absl::Status PrepareFewTokens(FeedForwardWeights& weights) {
  const FewTokensPlan plan =
      FewTokens::PlanFor(weights.device(), weights.form, weights.hidden(), weights.intermediate());
  absl::StatusOr<FewTokens> packed = FewTokens::Pack(plan, weights);
  const int64_t many = ManyProbeRows(plan);
  Proof proof(weights, many);
  absl::Status room = packed.ok() ? proof.Prepare(*packed) : packed.status();
  if (absl::IsResourceExhausted(room)) {
    weights.no_few = absl::StrCat("is not packed: ", room.message());
    return absl::OkStatus();
  }
  if (!room.ok()) return room;
  FUSEBLOCK_ASSIGN_OR_RETURN(const std::vector<float> composed, proof.Outputs(many));
  weights.few = std::make_unique<FewTokens>(*std::move(packed));
  FUSEBLOCK_ASSIGN_OR_RETURN(const std::vector<float> whole, proof.Outputs(many));
  const Equality equality = Compare(whole, composed);
  bool own_bits = true;
  std::vector<int64_t> counts = {kProbeRows};  // blocks of few tokens, where such take them
  for (const int width : kFewTokensWidths) counts.push_back(width - width / 4);
  for (const int64_t rows : counts) {
    FUSEBLOCK_ASSIGN_OR_RETURN(const std::vector<float> part, proof.Outputs(rows));
    own_bits = own_bits && Compare(part, whole) == Equality::kBits;
  }
  if (equality == Equality::kNone || !own_bits) {
    weights.few.reset();
    weights.no_few = own_bits ? "gave other values than the composed products"
                              : "gave a row other bits in another batch";
    return absl::OkStatus();
  }
  weights.few->as_products = equality == Equality::kBits;
  TryLibraryDown(weights);
  return absl::OkStatus();
}

}  // namespace fuseblock
