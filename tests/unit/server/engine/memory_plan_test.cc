#include "server/engine/memory_plan.h"

#include <gtest/gtest.h>

namespace fuseblock {
namespace {

DeviceMemory Gpu() {
  DeviceMemory memory;
  memory.device = {DeviceType::kCuda, 0};
  memory.lanes = 2;
  memory.weights = 1000;
  memory.tensors = 20;
  memory.workspace = 300;
  memory.captured = 7;
  memory.graphs = 50;
  memory.staging_in = 10;
  memory.staging_out = 30;
  return memory;
}

DeviceMemory Cpu() {
  DeviceMemory memory;
  memory.lanes = 1;
  memory.weights = 1000;
  memory.workspace = 300;
  memory.staging_in = 10;
  memory.staging_out = 30;
  memory.callers = 4;
  return memory;
}

TEST(MemoryPlanTest, TheSumIsThatOfItsTerms) {
  EXPECT_EQ(Gpu().DeviceBytes(), 1000 + 2 * (20 + 300 + 7) + 50);
  EXPECT_EQ(Gpu().HostBytes(), 2 * (10 + 30));
  EXPECT_EQ(DescribeDeviceBytes(Gpu()),
            "cuda:0: weights 1000 + graphs 50 + 2 lanes x (tensors 20 + workspace 300 + small "
            "batches 7) = 1704 bytes on the device");
  EXPECT_EQ(DescribeHostBytes(Gpu()),
            "cuda:0: 2 lanes x (staging in 10 + staging out 30) = 80 bytes on the host, pinned");
  EXPECT_EQ(Cpu().HostBytes(), 1344);
  EXPECT_EQ(DescribeHostBytes(Cpu()),
            "cpu: weights 1000 + callers' lanes 4 + 1 lane x (staging in 10 + staging out 30 + "
            "workspace 300) = 1344 bytes on the host");
}

TEST(MemoryPlanTest, ADeviceOverItsLimitIsRefusedWithTheSum) {
  DeviceMemory gpu = Gpu();
  EXPECT_TRUE(CheckMemory({gpu, Cpu()}, 0).ok()) << "no limits";
  gpu.device_bytes_max = 1704;
  EXPECT_TRUE(CheckMemory({gpu, Cpu()}, 0).ok());
  gpu.device_bytes_max = 1703;
  const absl::Status status = CheckMemory({gpu, Cpu()}, 0);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(status.message(), DescribeDeviceBytes(gpu) +
                                  ", of which 1703 may be used: fewer or smaller models, "
                                  "engine.max_batch_tokens or engine.lanes_per_device make it fit");
}

TEST(MemoryPlanTest, WhatIsLeftKeepsToTheLimit) {
  DeviceMemory gpu = Gpu();
  EXPECT_EQ(gpu.Left(500), 500) << "no limit";
  gpu.device_bytes_max = 2000;
  EXPECT_EQ(gpu.Left(500), 2000 - 1704);
  EXPECT_EQ(gpu.Left(100), 100);
}

TEST(MemoryPlanTest, SoIsTheHost) {
  EXPECT_TRUE(CheckMemory({Gpu(), Cpu()}, 1424).ok());
  const absl::Status status = CheckMemory({Gpu(), Cpu()}, 1423);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(status.message(), DescribeHostBytes(Gpu()) + "; " + DescribeHostBytes(Cpu()) +
                                  "; together 1424, of which 1423 may be used");
}

TEST(MemoryPlanTest, SomeOfADeviceIsTheDriversOwn) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  EXPECT_EQ(UsableDeviceBytes(8 * kGiB, 8 * kGiB), 8 * kGiB - kGiB / 4);
  EXPECT_EQ(UsableDeviceBytes(100 * kGiB, 128 * kGiB), 98 * kGiB);
  EXPECT_EQ(UsableDeviceBytes(0, kGiB), 1) << "0 would be no limit";
}

}  // namespace
}  // namespace fuseblock
