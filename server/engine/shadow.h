// Shadow runs: a share of the requests that were answered is run again, on another revision or on
// another backend, and the outputs are compared, counted and dropped.
//
// The answered traffic does not notice: shadow runs have a thread and lanes of their own, one run
// at a time on one CPU thread of the lowest priority, and a budget of their own in bytes. What does
// not fit, or would make an answer wait for a lock, is skipped and counted as skipped.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "server/engine/engine.h"
#include "server/engine/lane.h"
#include "server/model/registry.h"

namespace fuseblock {

// What is compared, for the blocks of a name: a model's, or one block's, which goes before its
// model's.
struct ShadowRule {
  std::string name;
  double share = 0;      // of the requests, 0 .. 1; exact over any long run of them
  int64_t revision = 0;  // to compare with; 0: the one that answered
  std::string backend;   // to compare on: "cpu"; empty: the one that the revision prefers
};

// Thread-safe.
class Shadow {
 public:
  struct Options {
    std::vector<Device> devices;            // the engine's
    int64_t bytes_max = int64_t{64} << 20;  // inputs and outputs that wait or are compared
    LaneFactory make_lane;                  // unset: the real ones
  };
  // A request that was chosen, until it is compared or dropped.
  class Sample;

  // The registry must outlive it; so must the shadow every Sample.
  Shadow(Options options, const BlockRegistry& registry);
  // What waits is dropped.
  ~Shadow();
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;

  // Puts the rule in the place of the one of that name; a share of 0 takes that away.
  // INVALID_ARGUMENT when the share is none, there is nothing to compare with, or the backend
  // is not the engine's; BLOCK_NOT_FOUND when there is no block of that name, or one without the
  // revision.
  absl::Status Set(const ShadowRule& rule);
  std::vector<ShadowRule> rules() const;  // by name

  // For each request before it is submitted: null unless it was chosen. Never blocks.
  std::unique_ptr<Sample> Choose(const Request& request);
  // The chosen request's outcome, while its outputs are valid: they are copied. Never blocks.
  void Offer(std::unique_ptr<Sample> sample, const Outcome& outcome);

 private:
  struct Chosen {
    ShadowRule rule;
    double due = 0;  // requests that should have been chosen and were not yet
  };
  struct OwnLane {
    std::unique_ptr<Lane> lane;
    Buffer in, out;
  };

  void Loop();
  void Run(const Sample& sample);
  absl::StatusOr<double> Measure(const Sample& sample);
  absl::StatusOr<OwnLane*> LaneOf(Device device);
  bool Reserve(int64_t bytes);
  size_t IndexOf(const std::string& backend) const;  // among the devices; their number: none

  const Options options_;
  const BlockRegistry& registry_;
  std::atomic<bool> any_{false};  // there are rules
  std::atomic<int64_t> bytes_{0};

  mutable std::mutex rules_mutex_;
  std::map<std::string, Chosen, std::less<>> rules_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::deque<std::unique_ptr<Sample>> samples_;
  bool stop_ = false;

  std::map<std::string, OwnLane> lanes_;  // by device name; the thread's
  std::thread thread_;
};

class Shadow::Sample {
 public:
  ~Sample() { shadow_.bytes_ -= bytes_; }

 private:
  friend class Shadow;
  explicit Sample(Shadow& shadow) : shadow_(shadow) {}

  Shadow& shadow_;
  int64_t bytes_ = 0;  // held of the shadow's budget
  ShadowRule rule_;
  // By name: a run that waits keeps no revision from being unloaded.
  std::string block_;
  int64_t revision_ = 0;  // that answered
  BlockMetrics* metrics_ = nullptr;
  int64_t tokens_ = 0;
  std::array<InputPayload, 2> inputs_;
  std::shared_ptr<const void> payload_;
  std::array<std::string, 2> outputs_;
};

}  // namespace fuseblock
