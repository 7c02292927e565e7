// The ordered list of a kernel's implementations. Each can say why it does not take an input; the
// first that has no objection runs; the FP64 reference comes last and takes everything on the CPU.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/base/context.h"
#include "kernels/base/cuda.h"

namespace fuseblock {

template <typename Args>
struct Implementation {
  const char* name;   // "highway", "cuda", "reference"
  DeviceType device;  // where its tensors lie
  // Why this machine cannot run it at all ("no CUDA driver"), or empty. What it runs on when it can
  // ("AVX3_SPR") goes to *detail if detail is not null.
  std::string (*unavailable)(std::string* detail);
  // Why it cannot take these arguments, or empty. Called on checked arguments only.
  std::string (*why_not)(const Args& args);
  // Computes. Called only when unavailable() and why_not() are empty; a CUDA one with the context's
  // device current (UseCudaDevice).
  absl::Status (*run)(const ExecutionContext& context, const Args& args);
};

inline std::string AlwaysAvailable(std::string*) { return ""; }
template <typename Args>
std::string TakesAll(const Args&) {
  return "";
}

// Runs the first implementation for the context's device that can take the arguments.
// UNIMPLEMENTED with every reason when none can.
template <typename Args>
absl::Status RunFirst(const char* kernel, absl::Span<const Implementation<Args>> list,
                      const ExecutionContext& context, const Args& args) {
  std::string reasons;
  for (const Implementation<Args>& item : list) {
    if (item.device != context.device.type) continue;
    std::string reason = item.unavailable(nullptr);
    if (reason.empty()) reason = item.why_not(args);
    if (reason.empty()) {
      if (item.device == DeviceType::kCuda) {
        if (absl::Status status = UseCudaDevice(context.device); !status.ok()) return status;
      }
      return item.run(context, args);
    }
    absl::StrAppend(&reasons, "; ", item.name, ": ", reason);
  }
  return absl::UnimplementedError(
      absl::StrCat(kernel, ": no implementation on ", DeviceName(context.device), reasons));
}

// What `fuseblock kernels` prints of one implementation.
struct ImplementationInfo {
  const char* name;
  DeviceType device;
  std::string unavailable;  // empty: usable here
  std::string detail;       // what it runs on: "AVX3_SPR", "sm_90"
};

template <typename Args>
std::vector<ImplementationInfo> DescribeList(absl::Span<const Implementation<Args>> list) {
  std::vector<ImplementationInfo> out;
  for (const Implementation<Args>& item : list) {
    ImplementationInfo info{item.name, item.device, "", ""};
    info.unavailable = item.unavailable(&info.detail);
    out.push_back(std::move(info));
  }
  return out;
}

}  // namespace fuseblock
