// The implementations that feed_forward.cc lists, and what the reference of ffn_path shares.
#pragma once

#include <vector>

#include "kernels/feed_forward/feed_forward.h"

namespace fuseblock {

absl::Status FeedForwardReference(const ExecutionContext& context, const FeedForwardArgs& args);

// One row x of the weights' columns through the feed-forward, before the last rounding.
std::vector<double> FeedForwardReferenceRow(const FeedForwardWeights& weights, Rounding rounding,
                                            const std::vector<double>& x);

}  // namespace fuseblock
