// The vector instruction set that the CPU kernels run on, chosen at first use from what they were
// built for and what the machine has.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/base/dtype.h"

namespace fuseblock {

// "AVX3", "AVX2", "SSE4", "SSSE3", "NEON" or "SCALAR".
std::string SimdTarget();

// For the kernels' lists: Highway always has a target; its name is the detail.
std::string HighwayUnavailable(std::string* detail);

// A vector of weights in FP32, for a kernel that uses it in many rows: the operand itself where it
// is that already, else a copy made once, so that the loops over rows are compiled for one kind of
// it.
class FloatVector {
 public:
  // data + addend; where data is null, `absent` in every element.
  FloatVector(const void* data, DType dtype, float addend, int64_t count, float absent);
  FloatVector(const FloatVector&) = delete;
  FloatVector& operator=(const FloatVector&) = delete;
  const float* data() const { return data_; }

 private:
  static constexpr int64_t kInPlace = 256;
  float in_place_[kInPlace];
  std::unique_ptr<float[]> longer_;
  const float* data_;
};

}  // namespace fuseblock
