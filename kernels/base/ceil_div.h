// How many parts of b cover a.
#pragma once

#include <cstdint>

namespace fuseblock {

// ceil(a / b) for a >= 0 and b > 0.
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace fuseblock
