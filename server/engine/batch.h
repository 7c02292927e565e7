// One batch in the making: requests, or chunks of them, side by side along tokens, gathered into a
// lane's staging.
#pragma once

#include <vector>

#include "server/engine/engine_block.h"
#include "server/engine/entry.h"

namespace fuseblock {

struct Batch {
  EngineBlock* block = nullptr;
  int form = 0;
  Parts parts;
  std::vector<int64_t> first_row;    // by part: where its rows begin in the batch
  std::vector<absl::Status> status;  // by part: OK, or what is wrong with this request alone
  LaneBatch run;                     // without the block

  bool empty() const { return parts.empty(); }
  // Requests that first came to a lane with this batch; the chunks that follow count no more.
  int64_t requests() const;
  // Leaves out of a gathered batch the parts that are not to be kept, and returns them; GatherAgain
  // before it runs.
  Parts KeepOnly(const std::vector<bool>& keep);
  void Clear();
};

// Sets everything after `parts`, copies the payloads to `staging_in` (which has room for the
// block's largest batch) and lets go of them, but for those of which a part alone was taken: these
// may have to start over. Many bytes are shared out to `parallel_for`. Outputs will lie in
// `staging_out`. A request whose token ids are not in the table fails alone: its rows are computed
// on id 0 and dropped.
void Gather(Batch& batch, std::byte* staging_in, std::byte* staging_out,
            const ParallelFor& parallel_for);

// Copies what is left of a gathered batch from the staging where it lies into another one.
void GatherAgain(Batch& batch, std::byte* staging_in, std::byte* staging_out);

// The part's rows of that output.
absl::Span<const std::byte> OutputOf(const Batch& batch, size_t part, size_t output);

}  // namespace fuseblock
