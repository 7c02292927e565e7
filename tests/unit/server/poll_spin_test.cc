// This program's epoll_wait, which is gRPC's, too, before and after it may look out for events.
#include "server/poll_spin.h"

#include <grpcpp/completion_queue.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
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

// Events in quick succession: after them looking out is worthwhile.
void MakeTraffic() {
  const int epoll = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, 0);
  epoll_event event{};
  event.events = EPOLLIN;
  EXPECT_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &event), 0);
  for (int i = 0; i < 20; ++i) {
    itimerspec soon{};
    soon.it_value.tv_nsec = 100000;
    EXPECT_EQ(timerfd_settime(timer, 0, &soon, nullptr), 0);
    EXPECT_EQ(epoll_wait(epoll, &event, 1, -1), 1);
  }
  close(timer);
  close(epoll);
}

// What the calling thread computes while it waits.
template <class Wait>
absl::Duration ComputedWhile(const Wait& wait) {
  timespec begin{}, end{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  wait();
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
  return absl::DurationFromTimespec(end) - absl::DurationFromTimespec(begin);
}

class PollSpin : public ::testing::TestWithParam<absl::Duration> {
 protected:
  void SetUp() override {
    SpinBeforeSleeping(GetParam());
    MakeTraffic();
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

constexpr int kWaitMs = 50;
constexpr absl::Duration kSome = absl::Milliseconds(2);  // less than a thread's time slice

TEST(SpinBeforeSleeping, LooksOutOnlyWhenItMay) {
  Watch watch;
  const auto computed = [&] { return ComputedWhile([&] { EXPECT_EQ(watch.Wait(kWaitMs), 0); }); };
  MakeTraffic();
  EXPECT_LT(computed(), kSome) << "nobody asked for it";
  SpinBeforeSleeping(kLong);
  EXPECT_LT(computed(), kSome) << "there is no traffic yet";
  MakeTraffic();
  EXPECT_GT(computed(), kSome);
  EXPECT_LT(computed(), kSome) << "the traffic has ended";
  MakeTraffic();
  SpinBeforeSleeping(absl::ZeroDuration());
  EXPECT_LT(computed(), kSome);
}

TEST(SpinBeforeSleeping, IsHowGrpcWaits) {
  grpc::CompletionQueue queue;
  const auto computed = [&] {
    return ComputedWhile([&] {
      void* tag = nullptr;
      bool ok = false;
      EXPECT_EQ(
          queue.AsyncNext(&tag, &ok,
                          std::chrono::system_clock::now() + std::chrono::milliseconds(kWaitMs)),
          grpc::CompletionQueue::TIMEOUT);
    });
  };
  EXPECT_LT(computed(), kSome);
  SpinBeforeSleeping(kLong);
  MakeTraffic();
  EXPECT_GT(computed(), kSome);
  SpinBeforeSleeping(absl::ZeroDuration());
  queue.Shutdown();
}

TEST(TimeoutLeft, IsTheRestRoundedUp) {
  EXPECT_EQ(TimeoutLeft(-1, kLong), -1);
  EXPECT_EQ(TimeoutLeft(5, absl::ZeroDuration()), 5);
  EXPECT_EQ(TimeoutLeft(5, absl::Microseconds(1)), 5);
  EXPECT_EQ(TimeoutLeft(5, absl::Milliseconds(1)), 4);
  EXPECT_EQ(TimeoutLeft(5, absl::Milliseconds(5)), 0);
  EXPECT_EQ(TimeoutLeft(5, kLong), 0);
}

}  // namespace
}  // namespace fuseblock
