// y[M, N] = x[M, K] * W[N, K]^T (+ bias[N]): the product with a prepared weight.
//
// A LinearWeight is a weight made ready once for one device (packed panels on the CPU, a pinned
// cuBLASLt algorithm on CUDA) and used by many calls and threads at a time; it is constant after
// Prepare. x: [.., K], FP32, FP16 or BF16, the weight's dtype; last axis contiguous, leading axes
// collapsible. y: [.., N], the weight's dtype or FP32. Must not overlap x. Accumulation is in FP32,
// in an order that depends on (N, K) alone: a row's bits are the same alone and in any batch, at
// any position, with any number of threads. One rounding to y's dtype after the bias. M = 0: OK. K
// = 0 gives the bias, or zeros. FP32 on CUDA never uses TF32. Operands stay the caller's and are
// not kept once the kernel has finished. Errors: INVALID_ARGUMENT naming the operand, expected and
// given.
//
// On the CPU a task keeps its activations and sums on the stack of the thread that does it: up to
// kLinearTaskStackBytes (784 KiB of the vector kernel, 1096 KiB of AMX's), beside the thread's own.
// A caller's threads, ParallelFor's or the calling one, must have them: glibc's default of 8 MiB is
// plenty; one whose stack is made smaller (pthread_attr_setstacksize, std::thread on musl's default
// of 128 KiB) is to be given 1.25 MiB.
//
// Example:  x [[1, 2]], W [[3, 4], [5, 6], [7, 8]] -> [[11, 17, 23]]
// Smallest: M = N = K = 1. Boundary: K = 0. Invalid: x [M, K + 1].
// Source: GEMM of Dongarra et al., 1990, https://doi.org/10.1145/77626.79170.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "kernels/base/implementation.h"
#include "kernels/linear/epilogue.h"

namespace fuseblock {

inline constexpr size_t kLinearTaskStackBytes = size_t{1096} << 10;

enum class WeightLayout {
  kOutIn,  // [N, K], as torch.nn.Linear stores it
  kInOut,  // [K, N], as GPT-2's Conv1D stores it
};

class LinearWeight {
 public:
  LinearWeight();  // empty: may be assigned and destroyed only
  LinearWeight(LinearWeight&&) noexcept;
  LinearWeight& operator=(LinearWeight&&) noexcept;
  ~LinearWeight();

  // Copies and packs `weight` (host memory, contiguous rows, FP32, FP16 or BF16) and `bias` (a host
  // [N] of the weight's dtype or FP32) for `device`. The host memory is not needed afterwards.
  // RESOURCE_EXHAUSTED when the device has no room. INTERNAL when on CUDA no algorithm gives a row
  // the same bits alone and in a batch. On CUDA, K of 16-bit weights is summed in `segments` equal
  // parts, which are then added in order: what a kernel that shares K among blocks does, so that
  // both give a row the same bits. INVALID_ARGUMENT when they do not divide K.
  static absl::StatusOr<LinearWeight> Prepare(Device device, const ConstTensorView& weight,
                                              const std::optional<ConstTensorView>& bias,
                                              WeightLayout layout = WeightLayout::kOutIn,
                                              const ParallelFor& parallel_for = {},
                                              int segments = 1);

  int64_t n() const;
  int64_t k() const;
  DType dtype() const;
  Device device() const;
  size_t bytes() const;  // held on the device
  // How the product is computed, for people: "panels 64 x K, AVX3_SPR", "FP32 FMA tiles 64 x 64".
  std::string description() const;

  struct Packed;  // defined per backend in linear/
  const Packed& packed() const { return *packed_; }

 private:
  explicit LinearWeight(std::unique_ptr<Packed> packed);
  std::unique_ptr<Packed> packed_;
};

struct LinearArgs {
  ConstRows x;
  const LinearWeight* weight;
  Rows y;
  DType y_dtype;
  LinearEpilogue epilogue = LinearEpilogue::kNone;
};

// The implementations read LinearWeight::packed(); the reference unpacks the panels.
absl::Span<const Implementation<LinearArgs>> LinearImplementations();

absl::StatusOr<LinearArgs> CheckLinear(const ConstTensorView& x, const LinearWeight& weight,
                                       const TensorView& y);
absl::Status Linear(const ExecutionContext& context, const ConstTensorView& x,
                    const LinearWeight& weight, const TensorView& y);

}  // namespace fuseblock
