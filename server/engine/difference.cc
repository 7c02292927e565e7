#include "server/engine/difference.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "kernels/base/half.h"

namespace fuseblock {
namespace {

// The value's place among all of its type in ascending order, 0 for both zeros.
int64_t Place(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const int64_t magnitude = bits & 0x7FFFFFFFu;
  return (bits >> 31) != 0 ? -magnitude : magnitude;
}
int64_t Place16(uint16_t bits) {
  const int64_t magnitude = bits & 0x7FFFu;
  return (bits >> 15) != 0 ? -magnitude : magnitude;
}
int64_t Place(Half value) { return Place16(value.bits); }
int64_t Place(BFloat16 value) { return Place16(value.bits); }

template <typename T>
double Distance(T a, T b) {
  const bool a_is_number = !std::isnan(ToFloat(a)), b_is_number = !std::isnan(ToFloat(b));
  if (a_is_number != b_is_number) return std::numeric_limits<double>::infinity();
  return a_is_number ? static_cast<double>(std::llabs(Place(a) - Place(b))) : 0;
}

}  // namespace

Difference Compare(DType dtype, absl::Span<const std::byte> a, absl::Span<const std::byte> b) {
  Difference difference;
  VisitFloat(dtype, [&](auto type) {
    using T = decltype(type);
    for (size_t at = 0; at + sizeof(T) <= a.size(); at += sizeof(T)) {
      if (std::memcmp(a.data() + at, b.data() + at, sizeof(T)) == 0) continue;
      T x, y;
      std::memcpy(&x, a.data() + at, sizeof(T));
      std::memcpy(&y, b.data() + at, sizeof(T));
      ++difference.elements;
      difference.ulp_max = std::max(difference.ulp_max, Distance(x, y));
    }
  });
  return difference;
}

}  // namespace fuseblock
