// What a LinearWeight holds: private to linear/.
//
// On the CPU a weight W[N, K] lies in panels of 64 outputs: [ceil(N/64)][K][64], for BF16 in pairs
// along K: [ceil(N/64)][ceil(K/2)][64][2], the earlier step in the upper half of the pair's 32 bits
// (why: see linear_avx512_bf16.cc). A product then reads a panel as one contiguous stream, with
// lanes over N and each activation broadcast, so that every output is one chain along K and needs
// no sum across lanes. What N and K lack is zero.
#pragma once

#include <string>

#include "kernels/base/buffer.h"
#include "kernels/base/half.h"
#include "kernels/linear/linear.h"

namespace fuseblock {

inline constexpr int64_t kPanelWidth = 64;

struct LinearWeight::Packed {
  Packed() = default;
  Packed(const Packed&) = delete;
  Packed& operator=(const Packed&) = delete;
  ~Packed();

  Device device;
  DType dtype = DType::kF32;
  int64_t n = 0;
  int64_t k = 0;
  Buffer weight;          // CPU: panels; CUDA: dense [N, K]
  int segments = 1;       // of K, on CUDA
  Buffer bias;            // FP32, [N] rounded up to whole panels; empty: no bias
  void* plan = nullptr;   // CUDA
  std::string algorithm;  // CUDA

  const float* bias_data() const { return reinterpret_cast<const float*>(bias.data()); }
};

inline int64_t PanelCount(int64_t n) { return (n + kPanelWidth - 1) / kPanelWidth; }

// Elements of one panel.
inline int64_t PanelElements(DType dtype, int64_t k) {
  return kPanelWidth * (dtype == DType::kBF16 ? (k + 1) / 2 * 2 : k);
}

// Where W[row, col] lies in the panels, in elements.
inline int64_t PanelOffset(DType dtype, int64_t k, int64_t row, int64_t col) {
  const int64_t base = row / kPanelWidth * PanelElements(dtype, k);
  const int64_t lane = row % kPanelWidth;
  if (dtype == DType::kBF16) return base + col / 2 * (2 * kPanelWidth) + 2 * lane + 1 - col % 2;
  return base + col * kPanelWidth + lane;
}

// W[row, col] of a weight on the CPU.
template <typename T>
float PanelValue(const LinearWeight::Packed& packed, int64_t row, int64_t col) {
  const T* panels = reinterpret_cast<const T*>(packed.weight.data());
  return ToFloat(panels[PanelOffset(packed.dtype, packed.k, row, col)]);
}

// The implementations that linear.cc lists, each in the file of its name.
std::string LinearHighwayUnavailable(std::string* detail);
absl::Status LinearHighway(const ExecutionContext& context, const LinearArgs& args);
std::string LinearAvx512Bf16Unavailable(std::string* detail);
bool LinearAvx512Bf16IsFast();
absl::Status LinearAvx512Bf16(const ExecutionContext& context, const LinearArgs& args);
std::string LinearAmxBf16Unavailable(std::string* detail);
absl::Status LinearAmxBf16(const ExecutionContext& context, const LinearArgs& args);
absl::Status LinearCuda(const ExecutionContext& context, const LinearArgs& args);
absl::Status LinearReference(const ExecutionContext& context, const LinearArgs& args);

// The device's half of Prepare: `weight` is host memory, [N, K] with that row stride in elements.
absl::Status PrepareLinearCuda(const void* weight, int64_t stride, LinearWeight::Packed& packed);

}  // namespace fuseblock
