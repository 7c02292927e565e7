// Faults on demand: lanes that fail the way a GPU fails. For tests, and for rehearsing an outage on
// a real server; set as EngineOptions::make_lane.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "server/engine/lane.h"

namespace fuseblock {

enum class Fault {
  kNone,
  kLaunchFailure,  // this launch fails: INTERNAL
  kDeviceLost,     // it and every later one on the device fail: UNAVAILABLE
  kOutOfMemory,    // this launch finds no memory: RESOURCE_EXHAUSTED
};

// What goes wrong, by device. Thread-safe; shared by all lanes of a factory.
class Faults {
 public:
  // The next `launches` on that device fail so.
  void Inject(Device device, Fault fault, int launches = 1);
  // From now on the device has no more memory to give to its lanes.
  void RefuseMemory(Device device);
  // Launches on that device wait from now on until Release: a hang, or a lane that a test keeps
  // busy.
  void Hold(Device device);
  void Release(Device device);
  // Waits until that many launches are being held on the device.
  void AwaitHeld(Device device, int launches);
  // Launches that came to the device, failed ones too.
  int launches(Device device) const;

 private:
  friend class FaultyLane;
  struct State {
    Fault fault = Fault::kNone;
    int failing = 0;
    bool lost = false;
    bool refuse_memory = false;
    bool hold = false;
    int held = 0;
    int launches = 0;
  };
  Fault OnLaunch(Device device);
  absl::Status OnReserve(Device device);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, State> devices_;
};

// Lanes of `inner` that go wrong as `faults` says.
LaneFactory WithFaults(LaneFactory inner, std::shared_ptr<Faults> faults);

}  // namespace fuseblock
