// What PrepareFewTokens finds out about packed weights by running them: private to feed_forward/.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/base/buffer.h"
#include "kernels/feed_forward/feed_forward.h"

namespace fuseblock {

// That many rows of the weights' hidden size and dtype, uniform in [-2, 2), always the same, on
// their device.
absl::StatusOr<Buffer> ProbeRows(const FeedForwardWeights& weights, int64_t count);

// Sets weights.few's library_down where it gives a row the same bits and is faster.
void TryLibraryDown(FeedForwardWeights& weights);

}  // namespace fuseblock
