// The hardware's own functions: approximations, for results that are worth no more, and extrema
// that keep a NaN.
#pragma once

#include <cuda_runtime.h>

namespace fuseblock {

// 2^x within 2 ulp of FP32; 0 where that is below the smallest normal.
__device__ inline float Exp2Approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 2^x within 2 ulp of FP32, subnormal numbers too.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x within 1 ulp of FP32; 0 where that is below the smallest normal.
__device__ inline float ReciprocalApprox(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The smaller and the larger of two; NaN where one is.
__device__ inline float MinOrNan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
__device__ inline float MaxOrNan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

}  // namespace fuseblock
