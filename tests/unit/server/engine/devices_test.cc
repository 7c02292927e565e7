#include "server/engine/devices.h"

#include <gtest/gtest.h>

#include "kernels/base/cuda.h"

namespace fuseblock {
namespace {

const Device kCpu{};
const Device kCuda0{DeviceType::kCuda, 0};
const Device kCuda1{DeviceType::kCuda, 1};

TEST(Devices, AutoEndsWithTheCpu) {
  const auto devices = ResolveDevices("auto", FallbackPolicy::kCpu);
  ASSERT_TRUE(devices.ok());
  EXPECT_EQ(devices->back(), kCpu);
  EXPECT_EQ(devices->size() > 1, CudaRuntime() != nullptr);
}

TEST(Devices, RefusesWhatIsNoDevice) {
  for (const char* text : {"", "gpu", "cuda", "cuda:", "cuda:x", "cuda:-1", "cpu,,cpu", "CPU"}) {
    const auto devices = ResolveDevices(text, FallbackPolicy::kCpu);
    EXPECT_TRUE(absl::IsInvalidArgument(devices.status())) << text << ": " << devices.status();
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ResolveDevices("cpu,cpu", FallbackPolicy::kCpu).status()));
  EXPECT_TRUE(absl::IsNotFound(ResolveDevices("cuda:4096", FallbackPolicy::kCpu).status()));
}

TEST(Devices, ThePreferredTypeAnswersWhileOneOfItIsHealthy) {
  const std::vector<Device> devices = {kCuda0, kCuda1, kCpu};
  const std::vector<bool> all = {true, true, true};
  Serving serving = WhoServes(devices, all, {true, true, true}, FallbackPolicy::kCpu);
  EXPECT_TRUE(serving.any && !serving.fallback);
  EXPECT_EQ(serving.type, DeviceType::kCuda);
  serving = WhoServes(devices, all, {false, true, true}, FallbackPolicy::kCpu);
  EXPECT_TRUE(serving.any && !serving.fallback);
  EXPECT_EQ(serving.type, DeviceType::kCuda);
  serving = WhoServes(devices, all, {false, false, true}, FallbackPolicy::kCpu);
  EXPECT_TRUE(serving.any && serving.fallback);
  EXPECT_EQ(serving.type, DeviceType::kCpu);
  EXPECT_FALSE(WhoServes(devices, all, {false, false, true}, FallbackPolicy::kRefuse).any);
}

TEST(Devices, OnlyDevicesThatHoldTheBlockCount) {
  const std::vector<Device> devices = {kCuda0, kCuda1, kCpu};
  const std::vector<bool> healthy = {true, false, true};
  EXPECT_FALSE(WhoServes(devices, {false, true, false}, healthy, FallbackPolicy::kCpu).any);
  const Serving cpu = WhoServes(devices, {false, false, true}, healthy, FallbackPolicy::kRefuse);
  EXPECT_TRUE(cpu.any && !cpu.fallback);
  EXPECT_FALSE(WhoServes(devices, {false, false, false}, healthy, FallbackPolicy::kCpu).any);
}

}  // namespace
}  // namespace fuseblock
