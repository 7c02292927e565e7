#include "server/engine/cpu_team.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace fuseblock {
namespace {

TEST(CpuTeam, RunsEachTaskOnceWhateverTheSizes) {
  for (const int threads : {1, 2, 3, 7}) {
    CpuTeam team(threads);
    EXPECT_EQ(team.threads(), threads);
    for (const int64_t tasks : {0, 1, 2, 3, 8, 1000}) {
      std::vector<int> runs(tasks, 0);  // plain ints: Run must order them before it returns
      team.Run(tasks, [&](int64_t i) { ++runs[i]; });
      EXPECT_EQ(std::accumulate(runs.begin(), runs.end(), int64_t{0}), tasks);
      for (const int count : runs) ASSERT_EQ(count, 1);
    }
  }
}

// A thread that wakes late must claim nothing of a later job with an earlier job's task.
TEST(CpuTeam, ManySmallJobsNeverMix) {
  CpuTeam team(4);
  for (int job = 0; job < 20000; ++job) {
    const int64_t tasks = 1 + job % 7;
    std::vector<int> seen(tasks, -1);
    team.Run(tasks, [&](int64_t i) { seen[i] = job; });
    for (const int value : seen) ASSERT_EQ(value, job);
  }
}

TEST(CpuTeam, AsParallelFor) {
  CpuTeam team(3);
  const ParallelFor parallel_for = team.parallel_for();
  EXPECT_EQ(parallel_for.threads, 3);
  std::atomic<int64_t> sum{0};
  parallel_for(100, [&](int64_t i) { sum += i; });
  EXPECT_EQ(sum, 4950);
}

TEST(CpuTeam, ATaskMayRunTheTeamAgain) {
  CpuTeam team(3);
  std::atomic<int> inner{0};
  team.Run(5, [&](int64_t) { team.Run(10, [&](int64_t) { ++inner; }); });
  EXPECT_EQ(inner, 50);
}

TEST(CpuTeam, TwoCallersAtATimeBothFinish) {
  CpuTeam team(3);
  std::atomic<int64_t> sums[2] = {0, 0};
  std::thread callers[2];
  for (int c = 0; c < 2; ++c) {
    callers[c] = std::thread([&, c] {
      for (int job = 0; job < 2000; ++job) team.Run(9, [&](int64_t i) { sums[c] += i; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sums[0], 72000);
  EXPECT_EQ(sums[1], 72000);
}

// A task that never gets another thread's help still ends: the caller works itself through all
// others.
TEST(CpuTeam, OneStuckTaskDoesNotStopTheOthers) {
  CpuTeam team(2);
  std::atomic<int> others{0};
  team.Run(64, [&](int64_t i) {
    if (i == 0) {
      while (others.load() < 63) std::this_thread::yield();  // waits for all tasks after it
    } else {
      ++others;
    }
  });
  EXPECT_EQ(others, 63);
}

TEST(CpuTeam, ZeroMeansTheCoresThatMayBeUsed) {
  CpuTeam team;
  EXPECT_EQ(team.threads(), UsableCores());
}

TEST(CpuTeam, UsableCoresKeepToTheQuota) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const std::string file = ::testing::TempDir() + "cpu_max_" + std::to_string(getpid());
  const struct {
    const char* text;
    int cores;
  } kCases[] = {{"max 100000\n", cores},
                {"100000 100000\n", 1},
                {"50000 100000\n", 1},
                {"99900000 100000\n", cores},
                {"", cores},
                {"rubbish", cores},
                {"100000 0\n", cores},
                {"-5 100000\n", cores}};
  for (const auto& [text, expected] : kCases) {
    std::ofstream(file) << text;
    EXPECT_EQ(UsableCores(file.c_str()), expected) << text;
  }
  std::remove(file.c_str());
  EXPECT_EQ(UsableCores(file.c_str()), cores);
}

}  // namespace
}  // namespace fuseblock
