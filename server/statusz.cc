#include "server/statusz.h"

#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

namespace fuseblock {
namespace {

constexpr size_t kQueuesShown = 20;

std::string StateText(BlockState state) {
  switch (state) {
    case BlockState::kLoading:
      return "loading";
    case BlockState::kReady:
      return "ready";
    case BlockState::kFailed:
      return "failed";
    case BlockState::kUnloading:
      return "unloading";
  }
  return "unknown";
}

// Adds what the block's revisions hold to the devices' sums.
StatusPage::Block BlockOf(const BlockStatus& status, const BlockRegistry& registry,
                          std::map<std::string, int64_t>& weights) {
  StatusPage::Block block;
  block.name = status.name;
  block.state = StateText(status.state);
  block.reason = status.reason;
  block.revisions = absl::StrJoin(status.revisions, ", ");
  if (status.current > 0) block.answering = absl::StrCat(status.current);
  block.pinned = status.pinned;
  for (const int64_t revision : status.revisions) {
    const auto served = registry.Find(status.name, absl::StrCat(revision));
    if (!served.ok()) continue;
    for (const auto& on_device : (*served)->blocks) {
      const auto bytes = static_cast<int64_t>(on_device->weight_bytes());
      weights[DeviceName(on_device->device())] += bytes;
      block.weights_bytes += bytes;
    }
  }
  if (status.served == nullptr) return block;
  block.kind = std::string(Name(status.served->spec.kind));
  block.dtype = std::string(Name(status.served->spec.dtype));
  block.content_hash = status.served->content_hash;
  if (status.served->metrics != nullptr) {
    const BlockMetrics::Totals totals = status.served->metrics->RequestTotals();
    block.requests = totals.requests;
    block.errors = totals.errors;
  }
  return block;
}

StatusPage::Device DeviceOf(const DeviceStatus& status, int64_t weights_bytes) {
  StatusPage::Device device;
  device.name = DeviceName(status.device);
  device.healthy = status.health == DeviceHealth::kHealthy;
  if (!device.healthy) device.reason = status.reason;
  device.weights_bytes = weights_bytes;
  device.staging_bytes = static_cast<int64_t>(status.staging_bytes);
  device.workspace_bytes = static_cast<int64_t>(status.workspace_bytes);
  for (const LaneStatus& lane : status.lanes) {
    device.lanes.push_back({lane.busy, lane.batches, lane.last_batch_tokens});
  }
  return device;
}

}  // namespace

StatusPage CollectStatus(const BuildInfo& build, absl::Time started, bool serving,
                         const Engine& engine, const BlockRegistry& registry,
                         const Shadow& shadow) {
  StatusPage page;
  page.version = build.version;
  page.commit = build.commit;
  page.cuda = build.cuda;
  page.isa = build.isa;
  page.state = serving ? "serving" : "not serving";
  page.started = started;
  page.now = absl::Now();

  std::map<std::string, int64_t> weights;  // by device
  for (const BlockStatus& status : registry.List()) {
    page.blocks.push_back(BlockOf(status, registry, weights));
  }
  for (const DeviceStatus& status : engine.Devices()) {
    page.devices.push_back(DeviceOf(status, weights[DeviceName(status.device)]));
  }
  LoadStatus load = engine.Load(kQueuesShown);
  page.budgets = {{"requests admitted", load.admitted_requests, 0, false},
                  {"tokens admitted", load.admitted_tokens, load.admitted_tokens_max, false},
                  {"bytes admitted", load.admitted_bytes, load.admitted_bytes_max, true},
                  {"requests that wait", load.queue_requests, 0, false},
                  {"tokens that wait", load.queue_tokens, 0, false},
                  {"bytes that wait", load.queue_bytes, 0, true}};
  for (QueueStatus& queue : load.busiest) {
    page.queues.push_back({std::move(queue.block), queue.requests, queue.tokens, queue.bytes});
  }
  for (const ShadowRule& rule : shadow.rules()) {
    const std::string revision =
        rule.revision > 0 ? absl::StrCat("revision ", rule.revision) : "the same revision";
    page.shadows.push_back(
        {rule.name, rule.backend.empty() ? revision : absl::StrCat(revision, " on ", rule.backend),
         rule.share});
  }
  return page;
}

}  // namespace fuseblock
