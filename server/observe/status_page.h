// /statusz: one page for people that says what the server is doing now, in plain HTML: no scripts,
// nothing fetched from elsewhere, every name escaped.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace fuseblock {

// What the page shows, gathered by the server. Bytes and tokens are numbers; the page makes them
// readable.
struct StatusPage {
  struct Lane {
    bool busy = false;
    int64_t batches = 0, last_batch_tokens = 0;
  };
  struct Device {
    std::string name;
    bool healthy = true;
    std::string reason;  // why it is not
    int64_t weights_bytes = 0, staging_bytes = 0, workspace_bytes = 0;
    std::vector<Lane> lanes;
  };
  // What is used of what may be used.
  struct Budget {
    std::string name;
    int64_t used = 0, limit = 0;
    bool bytes = false;
  };
  struct Queue {
    std::string block;
    int64_t requests = 0, tokens = 0, bytes = 0;
  };
  struct Block {
    std::string name, kind, dtype;
    std::string state, reason;  // "ready"; why it is not
    std::string answering;      // the revision that answers when none is asked for
    bool pinned = false;        // it was set, and is not simply the newest
    std::string revisions;      // all of them: "1, 2"
    std::string content_hash;
    int64_t weights_bytes = 0;  // of all revisions, on all devices
    int64_t requests = 0, errors = 0;
  };
  struct Shadow {
    std::string name, against;  // "revision 3", "cpu"
    double share = 0;
  };

  std::string version, commit, cuda, isa;
  std::string state;  // "serving", "not serving"
  absl::Time started, now;
  std::vector<Device> devices;
  std::vector<Budget> budgets;
  std::vector<Queue> queues;  // those with the most tokens waiting
  std::vector<Block> blocks;
  std::vector<Shadow> shadows;
};

std::string RenderStatusPage(const StatusPage& page);

}  // namespace fuseblock
