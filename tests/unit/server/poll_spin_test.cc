// This program's epoll_wait, before and after it may look out for events.
#include "server/poll_spin.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <vector>

#include "absl/time/time.h"

namespace fuseblock {
namespace {

constexpr absl::Duration kLong = absl::Hours(1);

// An epoll instance that watches one counter.
class Watch {
 public:
  Watch() : epoll_(epoll_create1(0)), counter_(eventfd(0, EFD_NONBLOCK)) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = 7;
    EXPECT_EQ(epoll_ctl(epoll_, EPOLL_CTL_ADD, counter_, &event), 0);
  }
  ~Watch() {
    close(counter_);
    close(epoll_);
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void Signal() const {
    const uint64_t one = 1;
    EXPECT_EQ(write(counter_, &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  }
  void Clear() const {
    uint64_t count = 0;
    EXPECT_EQ(read(counter_, &count, sizeof(count)), static_cast<ssize_t>(sizeof(count)));
  }
  int Wait(int timeout_ms) {
    event_ = {};
    return epoll_wait(epoll_, &event_, 1, timeout_ms);
  }
  uint32_t told() const { return event_.data.u32; }

 private:
  const int epoll_, counter_;
  epoll_event event_{};
};

// Waits until looking out is worthwhile.
void MakeTraffic(Watch& watch) {
  for (int i = 0; i < 20; ++i) EXPECT_EQ(watch.Wait(1), 0);
}

// What the calling thread computed during a wait that ended without an event.
absl::Duration ComputedInAWaitOf(Watch& watch, int timeout_ms) {
  timespec begin{}, end{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  EXPECT_EQ(watch.Wait(timeout_ms), 0);
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
  return absl::DurationFromTimespec(end) - absl::DurationFromTimespec(begin);
}

class PollSpin : public ::testing::TestWithParam<absl::Duration> {
 protected:
  void SetUp() override {
    SpinBeforeSleeping(GetParam());
    MakeTraffic(watch_);
  }
  void TearDown() override { SpinBeforeSleeping(absl::ZeroDuration()); }

  Watch watch_;
};
INSTANTIATE_TEST_SUITE_P(SpinMax, PollSpin,
                         ::testing::Values(absl::ZeroDuration(), absl::Microseconds(1), kLong));

TEST_P(PollSpin, TellsOfAnEventThatIsThere) {
  watch_.Signal();
  for (const int timeout_ms : {0, 1, -1}) {
    EXPECT_EQ(watch_.Wait(timeout_ms), 1);
    EXPECT_EQ(watch_.told(), 7);
  }
}

TEST_P(PollSpin, AwaitsAnEvent) {
  for (int i = 0; i < 100; ++i) {
    std::thread other([&] { watch_.Signal(); });
    EXPECT_EQ(watch_.Wait(-1), 1);
    other.join();
    watch_.Clear();
  }
}

TEST_P(PollSpin, EndsWithTheTimeout) {
  EXPECT_EQ(watch_.Wait(0), 0);
  EXPECT_EQ(watch_.Wait(1), 0);
}

TEST_P(PollSpin, SeveralThreadsWaitAtATime) {
  constexpr int kThreads = 4;
  std::vector<Watch> watches(kThreads);
  std::vector<std::thread> threads;
  for (Watch& watch : watches) {
    threads.emplace_back([&watch] { EXPECT_EQ(watch.Wait(-1), 1); });
  }
  for (const Watch& watch : watches) watch.Signal();
  for (std::thread& thread : threads) thread.join();
}

TEST_P(PollSpin, ErrorsAreTheKernels) {
  epoll_event event{};
  EXPECT_EQ(epoll_wait(-1, &event, 1, -1), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST(SpinBeforeSleeping, LooksOutOnlyWhenItMay) {
  constexpr int kWaitMs = 50;
  constexpr absl::Duration kSome = absl::Milliseconds(2);  // less than a thread's time slice
  Watch watch;
  MakeTraffic(watch);
  EXPECT_LT(ComputedInAWaitOf(watch, kWaitMs), kSome) << "nobody asked for it";
  SpinBeforeSleeping(kLong);
  EXPECT_LT(ComputedInAWaitOf(watch, kWaitMs), kSome) << "there is no traffic yet";
  MakeTraffic(watch);
  EXPECT_GT(ComputedInAWaitOf(watch, kWaitMs), kSome);
  SpinBeforeSleeping(absl::ZeroDuration());
  EXPECT_LT(ComputedInAWaitOf(watch, kWaitMs), kSome);
}

}  // namespace
}  // namespace fuseblock
