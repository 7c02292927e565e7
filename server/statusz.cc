#include "server/statusz.h"

#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "server/engine/memory_plan.h"

namespace fuseblock {
namespace {

// So that a page stays of a size, whatever is loaded and whoever sends.
constexpr size_t kRowsShown = 20;  // queues, tenants
constexpr size_t kBlocksShown = 500;
constexpr size_t kUnitsShown = 12;  // of a device

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
  device.health = std::string(Name(status.health));
  if (status.health != DeviceHealth::kHealthy) device.reason = status.reason;
  device.weights_bytes = weights_bytes;
  device.staging_bytes = static_cast<int64_t>(status.staging_bytes);
  device.workspace_bytes = static_cast<int64_t>(status.workspace_bytes);
  for (const LaneStatus& lane : status.lanes) {
    device.lanes.push_back({lane.busy, lane.batches, lane.last_batch_tokens});
  }
  return device;
}

StatusPage::Sum SumOf(const MemorySum& memory) {
  const auto terms = [](const std::vector<MemorySum::Term>& of) {
    std::vector<StatusPage::Term> out;
    out.reserve(of.size());
    for (const MemorySum::Term& term : of) out.push_back({term.name, term.bytes});
    return out;
  };
  return {DeviceName(memory.device), memory.where, terms(memory.shared), memory.lanes,
          terms(memory.of_a_lane),   memory.bytes, memory.bytes_max};
}

std::vector<StatusPage::Sum> MemoryOf(const Engine& engine, int64_t host_bytes_max) {
  std::vector<StatusPage::Sum> sums;
  StatusPage::Sum host{"all", "on the host", {}, 0, {}, 0, host_bytes_max};
  for (const DeviceMemory& memory : engine.Memory()) {
    if (memory.device.type != DeviceType::kCpu) sums.push_back(SumOf(DeviceSum(memory)));
    sums.push_back(SumOf(HostSum(memory)));
    host.shared.push_back({DeviceName(memory.device), memory.HostBytes()});
    host.bytes += memory.HostBytes();
  }
  sums.push_back(std::move(host));
  return sums;
}

std::vector<StatusPage::Placed> PlacedOf(const PlacedUnits& placed) {
  std::vector<StatusPage::Placed> out;
  for (size_t d = 0; d < placed.placement.devices.size(); ++d) {
    out.push_back(
        {DescribeUnits(placed, d, kUnitsShown), SumOf(PlannedSum(placed.placement.devices[d]))});
  }
  return out;
}

StatusPage::Tenant TenantOf(const TenantStatus& tenant) {
  const auto limit = [](int64_t max) { return max == Budget::kNoLimit ? 0 : max; };
  return {tenant.name,
          tenant.use.requests,
          limit(tenant.budget.requests_max),
          tenant.use.tokens,
          limit(tenant.budget.tokens_max),
          tenant.use.bytes,
          limit(tenant.budget.bytes_max)};
}

void AddLoad(LoadStatus load, StatusPage& page) {
  page.budgets = {
      {"requests", load.admitted_requests, load.admitted_requests_max, load.queue_requests, false},
      {"tokens", load.admitted_tokens, load.admitted_tokens_max, load.queue_tokens, false},
      {"bytes", load.admitted_bytes, load.admitted_bytes_max, load.queue_bytes, true}};
  for (const TenantStatus& tenant : load.tenants) page.tenants.push_back(TenantOf(tenant));
  page.tenants_left_out = load.tenants_count - load.tenants.size();
  for (QueueStatus& queue : load.busiest) {
    page.queues.push_back({std::move(queue.block), queue.requests, queue.tokens, queue.bytes});
  }
}

}  // namespace

StatusPage CollectStatus(const StatusSources& sources) {
  StatusPage page;
  page.version = sources.build.version;
  page.commit = sources.build.commit;
  page.cuda = sources.build.cuda;
  page.isa = sources.build.isa;
  page.state = sources.serving ? "serving" : "not serving";
  page.started = sources.started;
  page.now = absl::Now();

  std::map<std::string, int64_t> weights;  // by device
  const std::vector<BlockStatus> blocks = sources.registry.List();
  for (const BlockStatus& status : blocks) {
    StatusPage::Block block = BlockOf(status, sources.registry, weights);
    if (page.blocks.size() < kBlocksShown) page.blocks.push_back(std::move(block));
  }
  page.blocks_left_out = blocks.size() - page.blocks.size();
  for (const DeviceStatus& status : sources.engine.Devices()) {
    page.devices.push_back(DeviceOf(status, weights[DeviceName(status.device)]));
  }
  page.memory = MemoryOf(sources.engine, sources.host_bytes_max);
  if (sources.placed != nullptr) page.placed = PlacedOf(*sources.placed);
  AddLoad(sources.engine.Load(kRowsShown), page);
  for (const ShadowRule& rule : sources.shadow.rules()) {
    const std::string revision =
        rule.revision > 0 ? absl::StrCat("revision ", rule.revision) : "the same revision";
    page.shadows.push_back(
        {rule.name, rule.backend.empty() ? revision : absl::StrCat(revision, " on ", rule.backend),
         rule.share});
  }
  return page;
}

}  // namespace fuseblock
