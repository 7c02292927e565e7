// Tries on a packed feed-forward's weights from how many tokens on the library's product of the
// plain down weight is faster than the kernel of our own, where it gives a row the same bits. (It
// does where K is one segment.)
#include "kernels/feed_forward/few_tokens_trial.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/cuda.h"
#include "kernels/base/half.h"
#include "kernels/base/status.h"
#include "kernels/base/tuning.h"
#include "kernels/linear/linear_packed.h"

namespace fuseblock {
namespace {

// Of each range of rows for which the library's product has an algorithm.
constexpr int64_t kSameBitsTokens[] = {300, 600};
// At which the two are timed. The last number bounds the memory that a trial takes.
constexpr int64_t kTrialTokens[] = {256, 512, 1024, 2048};
constexpr int kTrialTurns = 5, kTrialCalls = 4;

// The path of the weights' own kernels, with either down.
class DownTrial {
 public:
  explicit DownTrial(FeedForwardWeights& weights) : weights_(weights), device_(weights.device()) {}
  DownTrial(const DownTrial&) = delete;
  DownTrial& operator=(const DownTrial&) = delete;
  ~DownTrial() {
    const FuseblockCudaRuntime& cuda = *CudaRuntime();
    for (void* event : {begin_, end_}) {
      if (event != nullptr) cuda.event_destroy(device_.index, event);
    }
    if (stream_ != nullptr) cuda.stream_destroy(device_.index, stream_);
  }

  // For that many tokens.
  absl::Status Prepare(int64_t tokens) {
    const FuseblockCudaRuntime& cuda = *CudaRuntime();
    FUSEBLOCK_RETURN_IF_ERROR(
        CudaStatus("creating a stream", cuda.stream_create(device_.index, &stream_)));
    for (void** event : {&begin_, &end_}) {
      FUSEBLOCK_RETURN_IF_ERROR(
          CudaStatus("creating an event", cuda.event_create(device_.index, event)));
    }
    FUSEBLOCK_ASSIGN_OR_RETURN(x_, ProbeRows(weights_, tokens));
    FUSEBLOCK_ASSIGN_OR_RETURN(y_, Buffer::Allocate(MemoryKind::kDevice, x_.size(), device_));
    FUSEBLOCK_ASSIGN_OR_RETURN(
        workspace_, Buffer::Allocate(MemoryKind::kDevice,
                                     FewTokensWorkspaceBytes(*weights_.few, tokens), device_));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::byte>> Outputs(int64_t tokens, const void* library_down) {
    FUSEBLOCK_RETURN_IF_ERROR(Enqueue(tokens, library_down));
    std::vector<std::byte> y(static_cast<size_t>(tokens * weights_.hidden() * 2));
    const FuseblockCudaRuntime& cuda = *CudaRuntime();
    FUSEBLOCK_RETURN_IF_ERROR(CudaStatus(
        "reading a trial", cuda.copy_async(device_.index, y.data(), y_.data(), y.size(), stream_)));
    FUSEBLOCK_RETURN_IF_ERROR(
        CudaStatus("reading a trial", cuda.stream_synchronize(device_.index, stream_)));
    return y;
  }

  // Of kTrialCalls calls.
  absl::StatusOr<float> Milliseconds(int64_t tokens, const void* library_down) {
    const FuseblockCudaRuntime& cuda = *CudaRuntime();
    int error = cuda.event_record(device_.index, begin_, stream_);
    for (int i = 0; i < kTrialCalls; ++i) {
      FUSEBLOCK_RETURN_IF_ERROR(Enqueue(tokens, library_down));
    }
    float ms = 0;
    if (error == 0) error = cuda.event_record(device_.index, end_, stream_);
    if (error == 0) error = cuda.event_synchronize(device_.index, end_);
    if (error == 0) error = cuda.event_elapsed_ms(begin_, end_, &ms);
    FUSEBLOCK_RETURN_IF_ERROR(CudaStatus("timing a trial", error));
    return ms;
  }

 private:
  absl::Status Enqueue(int64_t tokens, const void* library_down) {
    weights_.few->library_down = library_down;
    weights_.few->library_down_from = 0;
    const DType dtype = weights_.dtype();
    const int64_t hidden = weights_.hidden();
    FUSEBLOCK_ASSIGN_OR_RETURN(
        FewTokensArgs args,
        AsFewTokensArgs(weights_.few.get(),
                        ConstTensorView(x_.data(), dtype, {tokens, hidden}, device_),
                        TensorView(y_.data(), dtype, {tokens, hidden}, device_),
                        absl::MakeSpan(workspace_.data(), workspace_.size())));
    args.path.emplace();
    absl::Status status = RunFewTokens({device_, stream_, {}}, args);
    weights_.few->library_down = nullptr;
    return status;
  }

  FeedForwardWeights& weights_;
  Device device_;
  void *stream_ = nullptr, *begin_ = nullptr, *end_ = nullptr;
  Buffer x_, y_, workspace_;
};

// Whether the library's down is the faster one at that many tokens, of the better of some turns.
absl::StatusOr<bool> LibraryIsFaster(DownTrial& trial, int64_t tokens, const void* library_down) {
  float own = std::numeric_limits<float>::infinity();
  float library = own;
  for (int turn = 0; turn < kTrialTurns; ++turn) {
    FUSEBLOCK_ASSIGN_OR_RETURN(const float a, trial.Milliseconds(tokens, nullptr));
    FUSEBLOCK_ASSIGN_OR_RETURN(const float b, trial.Milliseconds(tokens, library_down));
    own = std::min(own, a);
    library = std::min(library, b);
  }
  return library < own;
}

// The number of tokens from which the library's down is the faster one; 0: none.
absl::StatusOr<int64_t> LibraryDownFrom(FeedForwardWeights& weights, const void* library_down) {
  DownTrial trial(weights);
  FUSEBLOCK_RETURN_IF_ERROR(trial.Prepare(*std::rbegin(kTrialTokens)));
  int64_t from = 0;
  for (auto tokens = std::rbegin(kTrialTokens); tokens != std::rend(kTrialTokens); ++tokens) {
    FUSEBLOCK_ASSIGN_OR_RETURN(const bool faster, LibraryIsFaster(trial, *tokens, library_down));
    if (!faster) break;
    from = *tokens;
  }
  return from;
}

// Of these weights, as far as some rows show.
bool SameBitsByLibrary(FeedForwardWeights& weights, const void* library_down) {
  DownTrial trial(weights);
  if (!trial.Prepare(*std::rbegin(kSameBitsTokens)).ok()) return false;
  for (const int64_t tokens : kSameBitsTokens) {
    const auto own = trial.Outputs(tokens, nullptr);
    const auto by_library = trial.Outputs(tokens, library_down);
    if (!own.ok() || !by_library.ok() || *own != *by_library) return false;
  }
  return true;
}

std::string MachineText(Device device) {
  FuseblockCudaDevice properties{};
  int driver = 0;
  CudaRuntime()->device_properties(device.index, &properties);
  CudaRuntime()->driver_version(&driver);
  return absl::StrCat(properties.name, ", driver ", driver);
}

}  // namespace

absl::StatusOr<Buffer> ProbeRows(const FeedForwardWeights& weights, int64_t count) {
  std::vector<std::byte> rows(static_cast<size_t>(count * weights.hidden() * 2));
  VisitFloat(weights.dtype(), [&](auto type) {
    uint32_t bits = 0x5eed;
    for (size_t at = 0; at < rows.size(); at += sizeof(type)) {
      bits = bits * 1664525u + 1013904223u;
      const float value = static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-30f;
      const auto rounded = FromFloat<decltype(type)>(value);
      if constexpr (sizeof(type) == 2) std::memcpy(rows.data() + at, &rounded, sizeof(type));
    }
  });
  return Buffer::CopyToDevice(rows.data(), rows.size(), weights.device());
}

// What hinders the trial (no memory, a plan that is not the library's) leaves the own kernel, which
// is as right.
void TryLibraryDown(FeedForwardWeights& weights) {
  FewTokens& few = *weights.few;
  const LinearWeight::Packed& down = weights.down.packed();
  if (!few.as_products || few.plan().segments > 1 || down.bias.size() != 0) return;
  const void* library_down = down.plan;
  const absl::StatusOr<int64_t> from =
      Tuned(absl::StrCat(MachineText(down.device), ", ", EntryOf(weights.form).name, " ",
                         std::string(Name(down.dtype)), " ", down.n, "/", down.k,
                         ", tokens from which down is by ", down.algorithm),
            [&] { return LibraryDownFrom(weights, library_down); });
  if (!from.ok() || *from == 0 || !SameBitsByLibrary(weights, library_down)) return;
  few.library_down = library_down;
  few.library_down_from = *from;
}

}  // namespace fuseblock
