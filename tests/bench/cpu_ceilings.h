// What bounds a product on this CPU: how fast bytes are read once, and how fast its units multiply.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/context.h"

namespace fuseblock {

// Reads the bytes once, by a plain loop over a few places at a time, which is as fast as a core
// reads. The sum of their 64-bit words, so that the reads are needed.
uint64_t ReadOnce(const std::byte* data, size_t bytes, const ParallelFor& threads);

// FLOP/s of the fastest unit that multiplies FP32 or, with `bf16`, BF16 values into FP32 sums, in a
// loop on registers alone, on all threads for some milliseconds. 0: not known for this CPU.
double MultiplyPeak(bool bf16, const ParallelFor& threads);

}  // namespace fuseblock
