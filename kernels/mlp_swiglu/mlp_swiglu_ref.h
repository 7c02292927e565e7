// The implementations that mlp_swiglu.cc lists: private to mlp_swiglu/.
#pragma once

#include "kernels/mlp_swiglu/mlp_swiglu.h"

namespace fuseblock {

absl::Status MlpSwiGluReference(const ExecutionContext& context, const MlpSwiGluArgs& args);

}  // namespace fuseblock
