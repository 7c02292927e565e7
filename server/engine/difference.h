// How far two outputs are apart, element by element.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/base/dtype.h"

namespace fuseblock {

struct Difference {
  int64_t elements = 0;  // whose bits differ
  // The largest distance between two values in units in the last place of the dtype, counted as
  // steps from one representable value to the next; +0 and -0, and any two NaNs, are 0 apart, a NaN
  // and a number infinitely far.
  double ulp_max = 0;
};

// Compares two dense tensors of a float dtype. Precondition: both have the same size, a multiple of
// the dtype's.
Difference Compare(DType dtype, absl::Span<const std::byte> a, absl::Span<const std::byte> b);

}  // namespace fuseblock
