// What /statusz shows, gathered from the server's parts.
#pragma once

#include <memory>

#include "server/engine/engine.h"
#include "server/engine/placement.h"
#include "server/engine/shadow.h"
#include "server/model/registry.h"
#include "server/observe/metrics.h"
#include "server/observe/status_page.h"

namespace fuseblock {

struct StatusSources {
  const BuildInfo& build;
  absl::Time started;
  bool serving = false;  // what health says of the server
  const Engine& engine;
  const BlockRegistry& registry;
  const Shadow& shadow;
  std::shared_ptr<const PlacedUnits> placed;  // null: nothing was to place
  int64_t host_bytes_max = 0;                 // 0: no limit
};

// Holds no lock for longer than it takes to copy a few numbers.
StatusPage CollectStatus(const StatusSources& sources);

}  // namespace fuseblock
