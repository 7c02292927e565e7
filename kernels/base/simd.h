// The vector instruction set that the CPU kernels run on, chosen at first use from what they were
// built for and what the machine has.
#pragma once

#include <string>

namespace fuseblock {

// "AVX3", "AVX2", "SSE4", "SSSE3", "NEON" or "SCALAR".
std::string SimdTarget();

// For the kernels' lists: Highway always has a target; its name is the detail.
std::string HighwayUnavailable(std::string* detail);

}  // namespace fuseblock
