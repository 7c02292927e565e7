// What the forms make of the sums of a group's 16 rows, as functors: of gate and up together, or of
// each 8 of up's rows with their bias.
//
// Of<T>(eight, first, second, bias): an element of the product, of the group's chunk `eight` of 8
// columns, from the sums of its row in the first 8 rows and in the second.
#pragma once

#include "kernels/base/gelu.cuh"
#include "kernels/base/silu.cuh"

namespace fuseblock {

// What is added where there is no bias: the one value that changes no sum, not even -0.
constexpr float kNoBias = -0.0f;

struct SwiGluForm {
  static constexpr int kEights = 1;  // chunks of 8 columns that a group gives
  static constexpr bool kBiased = false;

  template <typename T>
  static __device__ float Of(int /*eight*/, float gate, float up, float /*bias*/) {
    return SiluTimesFor<T>(gate, up);
  }
};

template <GeluForm kForm>
struct GeGluForm {
  static constexpr int kEights = 1;
  static constexpr bool kBiased = false;

  template <typename T>
  static __device__ float Of(int /*eight*/, float gate, float up, float /*bias*/) {
    return GeluTimesFor<T, kForm>(gate, up);
  }
};

template <GeluForm kForm>
struct DenseGeluForm {
  static constexpr int kEights = 2;
  static constexpr bool kBiased = true;

  template <typename T>
  static __device__ float Of(int eight, float first, float second, float bias) {
    return GeluFor<T, kForm>((eight == 0 ? first : second) + bias);
  }
};

}  // namespace fuseblock
