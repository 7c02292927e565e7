// Faults on demand: lanes that fail the way a GPU fails. For tests, and for rehearsing an outage on
// a real server; set as EngineOptions::make_lane.
#pragma once

#include <array>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "server/engine/clock.h"
#include "server/engine/lane.h"

namespace fuseblock {

enum class Fault {
  kNone,
  kLaunchFailure,  // this launch fails: INTERNAL
  kDeviceLost,     // it and every later one on the device fail: UNAVAILABLE
  kOutOfMemory,    // this launch finds no memory: RESOURCE_EXHAUSTED
  kHang,           // it does not come back before Release, and is then run as if nothing had been
  kSlowCopy,       // its copy to the device takes `delay` longer
  kWrongResult,    // it succeeds, with results that are wrong
};

// What a lane does that can go wrong.
enum class Step { kRun, kReserve, kCapture };
inline constexpr int kSteps = 3;

// What goes wrong, by device. Thread-safe; shared by all lanes of a factory. A probe is a launch
// like any other.
class Faults {
 public:
  // Delays pass on that clock, which must outlive this.
  explicit Faults(Clock& clock = MonotonicClock()) : clock_(clock) {}

  // The next `launches` on that device fail so, or the next other steps.
  void Inject(Device device, Fault fault, int launches = 1,
              absl::Duration delay = absl::ZeroDuration(), Step step = Step::kRun);
  // From now on the device has no more memory to give to its lanes, or has again.
  void RefuseMemory(Device device, bool refuse = true);
  // Launches on that device wait from now on until Release: a hang, or a lane that a test keeps
  // busy.
  void Hold(Device device);
  // Ends that, and what hangs comes back.
  void Release(Device device);
  // Waits until that many steps, or more, wait on the device: held, hanging or copying slowly.
  void AwaitHeld(Device device, int launches);
  // Waits until none does.
  void AwaitNoneHeld(Device device);
  // Launches that came to the device, failed ones too.
  int launches(Device device) const;

 private:
  friend class FaultyLane;
  struct Planned {
    Fault fault = Fault::kNone;
    int failing = 0;
    absl::Duration delay;
  };
  struct State {
    std::array<Planned, kSteps> planned;
    bool lost = false;
    bool refuse_memory = false;
    bool hold = false;
    int releases = 0;
    int held = 0;
    int launches = 0;
  };
  Fault OnStep(Device device, Step step, absl::Duration* delay);
  absl::Status OnReserve(Device device);

  Clock& clock_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, State> devices_;
};

// Lanes of `inner` that go wrong as `faults` says.
LaneFactory WithFaults(LaneFactory inner, std::shared_ptr<Faults> faults);

}  // namespace fuseblock
