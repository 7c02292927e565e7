#include "kernels/list.h"

#include <filesystem>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "kernels/base/cuda.h"

namespace fuseblock {
namespace {

// Each kernel's room is a folder with a header of that name; the reference comes last and always
// runs.
TEST(List, EveryKernelHasARoomAndAReference) {
  for (const KernelEntry& kernel : Kernels()) {
    const std::string name = kernel.name;
    EXPECT_TRUE(std::filesystem::exists("kernels/" + name + "/" + name + ".h")) << name;
    const std::vector<ImplementationInfo> list = kernel.implementations();
    ASSERT_FALSE(list.empty()) << name;
    EXPECT_STREQ(list.back().name, "reference") << name;
    EXPECT_EQ(list.back().device, DeviceType::kCpu) << name;
    EXPECT_EQ(list.back().unavailable, "") << name;
  }
}

TEST(List, WhatIsUnusableSaysWhy) {
  for (const KernelEntry& kernel : Kernels()) {
    for (const ImplementationInfo& item : kernel.implementations()) {
      if (item.device != DeviceType::kCuda || CudaRuntime() != nullptr) continue;
      EXPECT_EQ(item.unavailable, CudaUnavailableReason()) << kernel.name;
    }
  }
}

TEST(List, NamesAreDistinct) {
  std::set<std::string> names;
  for (const KernelEntry& kernel : Kernels())
    EXPECT_TRUE(names.insert(kernel.name).second) << kernel.name;
  EXPECT_EQ(names.size(), Kernels().size());
}

struct Args {};

TEST(RunFirst, GivesEveryReasonWhenNoneCan) {
  static constexpr Implementation<Args> kList[] = {
      {"fast", DeviceType::kCpu, [](std::string*) -> std::string { return "no such unit"; },
       TakesAll<Args>, nullptr},
      {"picky", DeviceType::kCpu, AlwaysAvailable,
       [](const Args&) -> std::string { return "odd columns"; }, nullptr},
      {"cuda", DeviceType::kCuda, AlwaysAvailable, TakesAll<Args>, nullptr},
  };
  const absl::Status status = RunFirst<Args>("kernel", kList, {}, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(),
            "kernel: no implementation on cpu; fast: no such unit; picky: odd columns");
}

}  // namespace
}  // namespace fuseblock
