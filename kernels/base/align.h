// Where tensors begin that lie one behind the other in a run of memory.
#pragma once

#include <concepts>
#include <cstddef>

namespace fuseblock {

// The least multiple of `multiple` that is n or more, for n >= 0 and multiple > 0.
template <std::integral Int>
constexpr Int RoundUp(Int n, Int multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// What kernels ask of a workspace, and of each tensor that they lay into it.
inline constexpr size_t kTensorAlignment = 256;
// What a tensor of that many bytes takes, so that the next one is aligned, too.
template <std::integral Int>
constexpr Int AlignTensor(Int bytes) {
  return RoundUp(bytes, Int{kTensorAlignment});
}

}  // namespace fuseblock
