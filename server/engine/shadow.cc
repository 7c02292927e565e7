#include "server/engine/shadow.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status.h"
#include "server/engine/batch.h"
#include "server/engine/difference.h"
#include "server/observe/log.h"
#include "server/observe/metrics.h"
#include "server/reason.h"

namespace fuseblock {
namespace {

constexpr int kLowestPriority = 19;
constexpr int kThreads = 1;  // of a CPU lane

// What an input's pieces hold.
int64_t BytesOf(const std::array<InputPayload, 2>& inputs) {
  int64_t bytes = 0;
  for (const InputPayload& input : inputs) {
    for (const auto& piece : input.pieces) bytes += static_cast<int64_t>(piece.size());
  }
  return bytes;
}

}  // namespace

Shadow::Shadow(Options options, const BlockRegistry& registry)
    : options_(std::move(options)), registry_(registry), thread_([this] { Loop(); }) {}

Shadow::~Shadow() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

absl::Status Shadow::Set(const ShadowRule& rule) {
  if (!(rule.share >= 0 && rule.share <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("share: expected 0 to 1, got ", rule.share));
  }
  if (rule.share == 0) {
    std::lock_guard<std::mutex> lock(rules_mutex_);
    rules_.erase(rule.name);
    any_ = !rules_.empty();
    return absl::OkStatus();
  }
  if (rule.revision == 0 && rule.backend.empty()) {
    return absl::InvalidArgumentError("expected a revision or a backend to compare with");
  }
  if (!rule.backend.empty() && IndexOf(rule.backend) == options_.devices.size()) {
    const auto name = [](std::string* out, Device device) { *out += DeviceName(device); };
    return absl::InvalidArgumentError(absl::StrCat("backend: expected one of ",
                                                   absl::StrJoin(options_.devices, ", ", name),
                                                   ", got \"", rule.backend, "\""));
  }
  FUSEBLOCK_RETURN_IF_ERROR(registry_.CheckHas(rule.name, rule.revision));
  std::lock_guard<std::mutex> lock(rules_mutex_);
  rules_[rule.name] = {rule, 0};
  any_ = true;
  return absl::OkStatus();
}

size_t Shadow::IndexOf(const std::string& backend) const {
  const auto found = std::find_if(options_.devices.begin(), options_.devices.end(),
                                  [&](Device device) { return DeviceName(device) == backend; });
  return static_cast<size_t>(found - options_.devices.begin());
}

std::vector<ShadowRule> Shadow::rules() const {
  std::vector<ShadowRule> rules;
  std::lock_guard<std::mutex> lock(rules_mutex_);
  for (const auto& [name, chosen] : rules_) rules.push_back(chosen.rule);
  return rules;
}

bool Shadow::Reserve(int64_t bytes) {
  if (bytes_.fetch_add(bytes) + bytes <= options_.bytes_max) return true;
  bytes_ -= bytes;
  return false;
}

std::unique_ptr<Shadow::Sample> Shadow::Choose(const Request& request) {
  if (!any_.load(std::memory_order_relaxed) || request.block->metrics == nullptr) return nullptr;
  const std::string& name = request.block->name;
  std::unique_ptr<Sample> sample(new Sample(*this));
  {
    const std::unique_lock<std::mutex> lock(rules_mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return nullptr;  // a request that would wait is passed over
    auto found = rules_.find(name);
    if (found == rules_.end()) found = rules_.find(name.substr(0, name.find('.')));
    if (found == rules_.end()) return nullptr;
    Chosen& chosen = found->second;
    chosen.due += chosen.rule.share;
    if (chosen.due < 1) return nullptr;
    chosen.due -= 1;
    sample->rule_ = chosen.rule;
  }
  sample->metrics_ = request.block->metrics;
  const int64_t bytes = BytesOf(request.inputs);
  if (!Reserve(bytes)) {
    sample->metrics_->CountShadow(ShadowResult::kSkipped);
    return nullptr;
  }
  sample->bytes_ = bytes;
  sample->block_ = name;
  sample->revision_ = request.block->revision;
  sample->tokens_ = request.tokens;
  sample->inputs_ = request.inputs;
  sample->payload_ = request.payload;
  return sample;
}

void Shadow::Offer(std::unique_ptr<Sample> sample, const Outcome& outcome) {
  if (!outcome.status.ok()) return;
  BlockMetrics* metrics = sample->metrics_;
  int64_t bytes = 0;
  for (const auto& output : outcome.outputs) {
    for (const auto& piece : output) bytes += static_cast<int64_t>(piece.size());
  }
  const bool fits = Reserve(bytes);
  if (fits) {
    sample->bytes_ += bytes;
    for (size_t o = 0; o < outcome.outputs.size(); ++o) {
      for (const auto& piece : outcome.outputs[o]) {
        sample->outputs_[o].append(reinterpret_cast<const char*>(piece.data()), piece.size());
      }
    }
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (lock.owns_lock()) samples_.push_back(std::move(sample));
  }
  if (sample == nullptr) {
    wake_.notify_one();
  } else {
    metrics->CountShadow(ShadowResult::kSkipped);
  }
}

void Shadow::Loop() {
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kLowestPriority);
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || !samples_.empty(); });
    if (stop_) {
      samples_.clear();
      return;
    }
    const std::unique_ptr<Sample> sample = std::move(samples_.front());
    samples_.pop_front();
    lock.unlock();
    Run(*sample);
    lock.lock();
  }
}

void Shadow::Run(const Sample& sample) {
  const absl::StatusOr<double> ulp = Measure(sample);
  if (ulp.ok()) {
    sample.metrics_->ObserveShadow(*ulp);
    return;
  }
  // Unloaded meanwhile: nothing is wrong with it.
  const bool gone = ReasonOf(ulp.status()) == Reason::kBlockNotFound;
  sample.metrics_->CountShadow(gone ? ShadowResult::kSkipped : ShadowResult::kFailed);
  if (gone) return;
  Log(LogLevel::kWarning, "shadow_failed", std::string(ulp.status().message()),
      {{"block", sample.block_}, {"revision", sample.revision_}});
}

absl::StatusOr<Shadow::OwnLane*> Shadow::LaneOf(Device device) {
  OwnLane& own = lanes_[DeviceName(device)];
  if (own.lane == nullptr) {
    const LaneFactory make = options_.make_lane ? options_.make_lane : LaneFactory(MakeLane);
    FUSEBLOCK_ASSIGN_OR_RETURN(own.lane, make(device, kThreads));
  }
  return &own;
}

// The largest difference of the outputs when the request is run as its rule says; negative when
// every bit is equal.
absl::StatusOr<double> Shadow::Measure(const Sample& sample) {
  const int64_t revision = sample.rule_.revision > 0 ? sample.rule_.revision : sample.revision_;
  FUSEBLOCK_ASSIGN_OR_RETURN(const std::shared_ptr<const ServedBlock> target,
                             registry_.Find(sample.block_, absl::StrCat(revision)));
  EngineBlock& block = *target->engine;
  const std::string& backend = sample.rule_.backend;
  const size_t index = backend.empty() ? block.PreferredDevice() : IndexOf(backend);
  const Device device = options_.devices[index];
  if (!block.has[index]) {
    return absl::FailedPreconditionError(
        absl::StrCat("revision ", revision, " is not on ", DeviceName(device)));
  }

  const auto entry = std::make_shared<Entry>();
  entry->request.tokens = sample.tokens_;
  entry->request.inputs = sample.inputs_;
  entry->request.payload = sample.payload_;
  FUSEBLOCK_ASSIGN_OR_RETURN(const int form, block.FormOf(entry->request));
  entry->queue = &block.queues[form];  // for its form: the request never waits there
  Batch batch;
  batch.parts.push_back({entry, 0, sample.tokens_});

  FUSEBLOCK_ASSIGN_OR_RETURN(OwnLane * own, LaneOf(device));
  const LaneBytes needed = block.BytesNeeded(index, std::max<int64_t>(sample.tokens_, 1));
  FUSEBLOCK_RETURN_IF_ERROR(own->lane->Reserve(needed));
  FUSEBLOCK_RETURN_IF_ERROR(GrowTo(needed.inputs, own->lane->staging(), own->in));
  FUSEBLOCK_RETURN_IF_ERROR(GrowTo(needed.outputs, own->lane->staging(), own->out));
  Gather(batch, own->in.data(), own->out.data(), own->lane->parallel_for());
  batch.run.block = block.on_device[index];
  LaneTimes times;
  if (batch.run.rows > 0) FUSEBLOCK_RETURN_IF_ERROR(own->lane->Run(batch.run, &times));

  double ulp = -1;
  for (size_t o = 0; o < block.outputs.size(); ++o) {
    const absl::Span<const std::byte> got = OutputOf(batch, 0, o);
    const std::string& expected = sample.outputs_[o];
    if (got.size() != expected.size()) {
      return absl::FailedPreconditionError(absl::StrCat(
          block.outputs[o].name, ": expected ", expected.size(), " bytes, got ", got.size()));
    }
    const Difference difference =
        Compare(block.outputs[o].dtypes[0],
                {reinterpret_cast<const std::byte*>(expected.data()), expected.size()}, got);
    if (difference.elements > 0) ulp = std::max(ulp, difference.ulp_max);
  }
  return ulp;
}

}  // namespace fuseblock
