// One batch in the making: requests side by side along tokens, gathered into a lane's staging.
#pragma once

#include <vector>

#include "server/engine/engine_block.h"

namespace fuseblock {

struct Batch {
  EngineBlock* block = nullptr;
  int form = 0;
  FairQueue::Entries entries;
  std::vector<int64_t> first_row;    // by entry: where its rows begin
  std::vector<absl::Status> status;  // by entry: OK, or what is wrong with this request alone
  LaneBatch run;                     // without the block

  bool empty() const { return entries.empty(); }
  void Clear();
};

// Sets everything after `entries`, copies the payloads to `staging_in` (which has room for the
// block's largest batch) and lets go of them. Outputs will lie in `staging_out`. A request whose
// token ids are not in the table fails alone: its rows are computed on id 0 and dropped.
void Gather(Batch& batch, std::byte* staging_in, std::byte* staging_out);

// The entry's rows of that output.
absl::Span<const std::byte> OutputOf(const Batch& batch, size_t entry, size_t output);

}  // namespace fuseblock
