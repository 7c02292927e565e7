// The three entries that most kernels' lists are made of: the CUDA launcher of the kernel's name,
// the Highway one and the reference, each of which takes every checked input.
#pragma once

#include "kernels/base/cuda.h"
#include "kernels/base/implementation.h"
#include "kernels/base/simd.h"

namespace fuseblock {

// kLaunch(launcher, args, stream) calls the launcher that the backend exports under kName and
// returns its cudaError_t.
template <const char* kName, auto kLaunch>
struct CudaEntryPoint;

template <const char* kName, typename Launcher, typename Args,
          int (*kLaunch)(Launcher*, const Args&, void*)>
struct CudaEntryPoint<kName, kLaunch> {
  static std::string Unavailable(std::string* detail) {
    return CudaKernelUnavailable(kName, detail);
  }
  static absl::Status Run(const ExecutionContext& context, const Args& args) {
    return CudaStatus(kName, kLaunch(CudaLauncher<Launcher>(kName), args, context.stream));
  }
  static constexpr Implementation<Args> kImplementation = {"cuda", DeviceType::kCuda, Unavailable,
                                                           TakesAll<Args>, Run};
};

template <const char* kName, auto kLaunch>
constexpr auto CudaImplementation() {
  return CudaEntryPoint<kName, kLaunch>::kImplementation;
}

template <typename Args>
constexpr Implementation<Args> HighwayImplementation(absl::Status (*run)(const ExecutionContext&,
                                                                         const Args&)) {
  return {"highway", DeviceType::kCpu, HighwayUnavailable, TakesAll<Args>, run};
}

template <typename Args>
constexpr Implementation<Args> ReferenceImplementation(absl::Status (*run)(const ExecutionContext&,
                                                                           const Args&)) {
  return {"reference", DeviceType::kCpu, AlwaysAvailable, TakesAll<Args>, run};
}

}  // namespace fuseblock
