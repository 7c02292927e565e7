// The implementations that mlp_swiglu.cc lists, and what the reference of ffn_path shares.
#pragma once

#include <vector>

#include "kernels/mlp_swiglu/mlp_swiglu.h"

namespace fuseblock {

absl::Status MlpSwiGluReference(const ExecutionContext& context, const MlpSwiGluArgs& args);

// One row x of the weights' columns through the feed-forward, before the last rounding.
std::vector<double> MlpSwiGluReferenceRow(const MlpSwiGluWeights& weights, Rounding rounding,
                                          const std::vector<double>& x);

}  // namespace fuseblock
