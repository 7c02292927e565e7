// One request from its wire message to its encoded answer: the path that unary and stream RPCs
// share.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/engine/engine.h"
#include "server/engine/shadow.h"
#include "server/model/registry.h"
#include "server/observe/metrics.h"
#include "server/reason.h"
#include "server/rpc/codec.h"

namespace fuseblock {

// What a call says beside its message.
struct CallTerms {
  absl::Time arrived = absl::InfinitePast();
  absl::Time deadline = absl::InfiniteFuture();
  std::string tenant;
  int priority = 1;
};

struct BlockAnswer {
  absl::Status status;
  EncodedMessage response;  // RunBlockResponse; only when OK
  std::string block;        // the name that was asked for; only when not OK
  // Who answered; empty, and zero, when nobody ran it.
  std::string backend, revision;
  Timings timings;
  double encode_us = 0;
};

// Ties a call that may be cancelled at any time to the engine's request, whose name is known only
// when Submit returns, by which time the call may be over. Thread-safe.
class CancelSwitch {
 public:
  explicit CancelSwitch(Engine& engine) : engine_(engine) {}
  void Started(Engine::RequestId id);
  void Cancel();

 private:
  static constexpr Engine::RequestId kCancelled = ~Engine::RequestId{0};
  Engine& engine_;
  std::atomic<Engine::RequestId> id_{0};  // 0 until it started; or kCancelled, which stays
};

// Thread-safe. What it is given must outlive it.
class BlockRunner {
 public:
  BlockRunner(Engine& engine, const BlockRegistry& registry, Metrics& metrics, Shadow& shadow,
              const RequestLimits& limits)
      : engine_(engine), registry_(registry), metrics_(metrics), shadow_(shadow), limits_(limits) {}

  Engine& engine() const { return engine_; }
  // For a call that ends before it comes to a request.
  void CountError(const absl::Status& status) const { metrics_.CountError(ReasonOf(status)); }

  // Checks the request against its block, submits it, and calls done exactly once, from any thread,
  // possibly before Run returns; done must not block. `parsed` is what parsing `message` into
  // `request` came to. Never blocks. Counts the request and its bytes, and observes its times.
  void Run(Rpc rpc, const absl::Status& parsed, std::shared_ptr<const RawMessage> message,
           const WireRequest& request, CallTerms terms, CancelSwitch& cancel,
           absl::AnyInvocable<void(BlockAnswer) &&> done) const;

 private:
  BlockMetrics& MetricsFor(const absl::Status& status, const std::string& block) const;

  Engine& engine_;
  const BlockRegistry& registry_;
  Metrics& metrics_;
  Shadow& shadow_;
  RequestLimits limits_;
};

// gRPC's deadline; one that is absent, which reads as centuries away, is infinite.
absl::Time DeadlineFrom(std::chrono::system_clock::time_point deadline);

// Whether a call that is cancelled now is cancelled by its client. gRPC cancels at the deadline,
// too, by another clock; that end is the engine's to call and to count.
bool CancelledByClient(absl::Time deadline);

// "queue=1.5,batch=0.2,h2d=0.0,compute=81.3,d2h=0.0,encode=0.9", in microseconds.
std::string FormatTimings(const BlockAnswer& answer);

}  // namespace fuseblock
