#include "server/observe/gpu_usage.h"

#include <gtest/gtest.h>

#include "server/observe/metrics.h"

namespace fuseblock {
namespace {

TEST(GpuUsage, GpusThatAnswer) {
  GpuUsage usage(FAKE_NVML);
  const auto samples = usage.Read();
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].index, 0u);
  EXPECT_EQ(samples[0].utilization, 0.25);
  EXPECT_EQ(samples[0].memory_used, 300u);
  EXPECT_EQ(samples[1].index, 2u);
  EXPECT_EQ(samples[1].utilization, 1.0);
  EXPECT_EQ(samples[1].memory_total, 1000u);
}

TEST(GpuUsage, NoLibraryOrAnotherOne) {
  for (const char* library : {"libno-such-thing.so", "libm.so.6"}) {
    GpuUsage usage(library);
    EXPECT_TRUE(usage.Read().empty()) << library;
  }
}

TEST(GpuUsage, IsExported) {
  const Metrics metrics(FAKE_NVML);
  EXPECT_EQ(metrics.Value("fuseblock_gpu_utilization_ratio{gpu=\"0\"}"), 0.25);
  EXPECT_EQ(metrics.Value("fuseblock_gpu_memory_used_bytes{gpu=\"2\"}"), 900);
  EXPECT_EQ(metrics.Value("fuseblock_gpu_memory_size_bytes{gpu=\"2\"}"), 1000);
}

}  // namespace
}  // namespace fuseblock
