// A request inside the engine, and the part of it that a lane computes at a time: all of it, or a
// chunk of one that is longer than a batch may be.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/engine/admission.h"
#include "server/engine/engine.h"
#include "server/engine/lateness.h"

namespace fuseblock {

class BatchQueue;
struct Entry;
using EntryPtr = std::shared_ptr<Entry>;
using Entries = absl::InlinedVector<EntryPtr, 1>;  // not empty after a move, unlike a vector

// What a lane made of a part.
struct PartResult {
  absl::Status status;
  int64_t first_row = 0, rows = 0;
  std::array<absl::Span<const std::byte>, 2> outputs;
  std::shared_ptr<const void> memory;  // where the outputs lie
  Device device;
  Timings timings;
};
using PartResults = absl::InlinedVector<PartResult, 1>;

// Times are on the engine's clock.
struct Entry {
  Request request;
  Engine::RequestId id = 0;
  BatchQueue* queue = nullptr;
  int64_t bytes = 0;  // of its inputs and outputs; as many for each token
  absl::Time submitted;
  absl::Time deadline = absl::InfiniteFuture();
  absl::Duration cost;   // what it was predicted to take of a lane when it was admitted
  Prediction predicted;  // when it was admitted; zero when too little was known
  Ticket ticket;

  // Where it stands; the engine's lock guards it. Who ends it answers it, and has all but `running`
  // to itself from then on; what a lane still has of it is dropped.
  bool ended = false;
  bool with_lanes = false;  // when it ended lanes had parts of it, and may yet read its payload
  int64_t taken = 0;        // rows that lanes were given, from the first on
  int running = 0;          // parts that lanes have
  int round = 0;            // how often it was started over
  int64_t finished = 0;
  PartResults results;  // OK ones, as they came; `finished` rows together

 private:
  friend class FairQueue;
  using Fifo = std::list<EntryPtr>;
  int64_t order_ = 0;
  int tenant_ = -1;
  Fifo* fifo_ = nullptr;  // null while nothing of it waits
  Fifo::iterator place_;
  std::multimap<absl::Time, Entry*>::iterator expiry_;
};

// Rows [first_row, first_row + rows) of a request.
struct Part {
  EntryPtr entry;
  int64_t first_row = 0, rows = 0;
  int round = 0;

  bool whole() const { return rows == entry->request.tokens; }
};
using Parts = std::vector<Part>;

}  // namespace fuseblock
