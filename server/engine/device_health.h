// Whether a device takes work: the state machine behind quarantine and recovery. Pure logic over
// explicit times; the engine asks it and does what it says.
//
//              a failure, a hang,                     a sticky error
//              memory refused again and again         from any state
//   healthy ---------------------------> quarantined ----------------> lost, until a restart
//      ^                                   |    ^
//      |  every lane is right       due and|    | a lane fails, is wrong or hangs
//      +------------------------ probing <-+----+
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "server/engine/engine.h"
#include "server/observe/metrics.h"

namespace fuseblock {

// Not thread-safe. Times are on the engine's clock.
class DeviceHealthMachine {
 public:
  // Batches without memory, with none that succeeded between, that make the device unfit.
  static constexpr int kOutOfMemoryInARow = 3;
  // The first probe comes that long after the quarantine, each later one after twice the time of
  // the one before. A device that fails again soon after it recovered goes on where it was.
  static constexpr absl::Duration kFirstProbe = absl::Seconds(1);
  static constexpr absl::Duration kLastProbe = absl::Minutes(1);

  DeviceHealth state() const { return state_; }
  bool takes_work() const { return state_ == DeviceHealth::kHealthy; }
  // What took it out of service, for metrics and for people; of the last time, once it is healthy.
  FallbackCause cause() const { return cause_; }
  const std::string& reason() const { return reason_; }
  int stuck_lanes() const { return stuck_; }

  void Succeeded() { out_of_memory_ = 0; }
  // A batch failed so, or a lane has to be given up as hung (kHung: one more lane is stuck). True
  // when it is this that takes a healthy device out of service.
  bool Failed(FallbackCause cause, const std::string& reason, absl::Time now);
  // A lane that was given up has come back after all.
  void LaneCameBack() { --stuck_; }

  // When to probe; InfiniteFuture while there is nothing to probe, or a lane is stuck.
  absl::Time next_probe() const;
  // All lanes are asked now. Precondition: next_probe() has come. Returns the round's number.
  int64_t StartProbe(int lanes);
  // One lane's answer, counted unless its round is over. True when with it the device is healthy
  // again. A probe that meets a sticky error comes by Failed instead.
  bool Probed(int64_t round, bool right, const std::string& reason, absl::Time now);

 private:
  void Postpone(absl::Time now);

  DeviceHealth state_ = DeviceHealth::kHealthy;
  FallbackCause cause_ = FallbackCause::kDeviceLost;
  std::string reason_;
  int out_of_memory_ = 0;
  int stuck_ = 0;
  int64_t round_ = 0;
  int unprobed_ = 0;      // lanes that have yet to answer this round
  absl::Duration delay_;  // until the newest probe
  absl::Time next_probe_ = absl::InfiniteFuture();
  absl::Time recovered_ = absl::InfinitePast();
};

}  // namespace fuseblock
