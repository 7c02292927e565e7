// /statusz: one page for people that says what the server is doing now, in plain HTML: no scripts,
// nothing fetched from elsewhere, every name escaped.
#pragma once

#include <cstddef>
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
    std::string health;  // "healthy"
    std::string reason;  // why it is not
    int64_t weights_bytes = 0, staging_bytes = 0, workspace_bytes = 0;
    std::vector<Lane> lanes;
  };
  // A sum of bytes, and what it may come to. Terms of a lane count once for each.
  struct Term {
    std::string name;
    int64_t bytes = 0;
  };
  struct Sum {
    std::string device, where;
    std::vector<Term> shared;
    int64_t lanes = 0;
    std::vector<Term> of_a_lane;
    int64_t bytes = 0, bytes_max = 0;  // 0: no limit is set
  };
  // What the placement gave a device.
  struct Placed {
    std::string units;  // "14 units: m.layers.0, m.layers.2, ..."
    Sum sum;
  };
  // Limits of 0: none is set.
  struct Budget {
    std::string what;
    int64_t admitted = 0, admitted_max = 0;
    int64_t waiting = 0;  // of them
    bool bytes = false;
  };
  struct Tenant {
    std::string name;
    int64_t requests = 0, requests_max = 0;
    int64_t tokens = 0, tokens_max = 0;
    int64_t bytes = 0, bytes_max = 0;
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
  std::vector<Sum> memory;
  std::vector<Placed> placed;
  std::vector<Budget> budgets;
  std::vector<Tenant> tenants;  // those with a quota, the most tokens first
  size_t tenants_left_out = 0;
  std::vector<Queue> queues;  // those with the most tokens waiting
  std::vector<Block> blocks;
  size_t blocks_left_out = 0;
  std::vector<Shadow> shadows;
};

std::string RenderStatusPage(const StatusPage& page);

}  // namespace fuseblock
