// What /statusz shows, gathered from the server's parts.
#pragma once

#include "server/engine/engine.h"
#include "server/engine/shadow.h"
#include "server/model/registry.h"
#include "server/observe/metrics.h"
#include "server/observe/status_page.h"

namespace fuseblock {

// Holds no lock for longer than it takes to copy a few numbers. serving: what health says of the
// server.
StatusPage CollectStatus(const BuildInfo& build, absl::Time started, bool serving,
                         const Engine& engine, const BlockRegistry& registry, const Shadow& shadow);

}  // namespace fuseblock
