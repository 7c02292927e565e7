#include "server/rpc/health.h"

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/reason.h"
#include "server/rpc/status.h"

namespace fuseblock {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// One Watch call. Writes a state when it differs from the last one written; while a write is under
// way only the newest state is kept, so a client that does not read costs no memory.
class HealthWatch final : public grpc::ServerWriteReactor<HealthCheckResponse> {
 public:
  HealthWatch(HealthService& service, std::string name)
      : service_(service), name_(std::move(name)) {}

  const std::string& name() const { return name_; }

  void Show(HealthService::State state) {
    std::lock_guard<std::mutex> lock(mutex_);
    newest_ = state;
    Advance();
  }
  void End() {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
    Advance();
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    gone_ = gone_ || !ok;
    Advance();
  }
  void OnCancel() override {
    std::lock_guard<std::mutex> lock(mutex_);
    gone_ = true;
    Advance();
  }
  void OnDone() override {
    service_.Forget(this);
    delete this;
  }

 private:
  // With the lock held, as it may be: StartWrite and Finish run no reaction before they return.
  void Advance() {
    if (finished_ || (writing_ && !gone_)) return;
    if (!gone_ && newest_.has_value() && newest_ != written_) {
      writing_ = true;
      written_ = newest_;
      response_.set_status(*newest_);
      StartWrite(&response_);
    } else if (gone_ || ending_) {
      finished_ = true;
      Finish(gone_ ? grpc::Status::CANCELLED
                   : grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server is shutting down"));
    }
  }

  HealthService& service_;
  const std::string name_;
  HealthCheckResponse response_;  // gRPC's while a write is under way
  std::mutex mutex_;              // guards what follows
  std::optional<HealthService::State> newest_;
  std::optional<HealthService::State> written_;
  bool writing_ = false;
  bool gone_ = false;
  bool ending_ = false;
  bool finished_ = false;
};

void HealthService::SetPhase(Phase phase) {
  std::lock_guard<std::mutex> lock(mutex_);
  phase_ = phase;
  TellAll();
}

void HealthService::BlockChanged(const std::string& name) {
  std::lock_guard<std::mutex> lock(mutex_);
  Tell(name);
  Tell("");
}

void HealthService::DevicesChanged() {
  std::lock_guard<std::mutex> lock(mutex_);
  TellAll();
}

void HealthService::EndWatches() {
  std::lock_guard<std::mutex> lock(mutex_);
  ended_ = true;
  for (const auto& [name, watches] : watches_) {
    for (HealthWatch* watch : watches) watch->End();
  }
}

HealthService::State HealthService::StateOf(const std::string& service) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return Evaluate(service);
}

bool HealthService::BlockServes(const BlockStatus& block) const {
  return phase_ != Phase::kDraining && block.served != nullptr && engine_.CanServe(*block.served);
}

HealthService::State HealthService::Evaluate(const std::string& service) const {
  const auto serving = [](bool yes) {
    return yes ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
  };
  if (!service.empty()) {
    const absl::StatusOr<BlockStatus> block = registry_.Get(service);
    if (!block.ok()) return HealthCheckResponse::SERVICE_UNKNOWN;
    return serving(BlockServes(*block));
  }
  if (phase_ != Phase::kServing) return HealthCheckResponse::NOT_SERVING;
  const std::vector<BlockStatus> blocks = registry_.List();
  bool any = blocks.empty();
  for (const BlockStatus& block : blocks) any = any || BlockServes(block);
  return serving(any);
}

void HealthService::Tell(const std::string& service) {
  const auto found = watches_.find(service);
  if (found == watches_.end()) return;
  const State state = Evaluate(service);
  for (HealthWatch* watch : found->second) watch->Show(state);
}

void HealthService::TellAll() {
  for (const auto& [name, watches] : watches_) Tell(name);
}

void HealthService::Forget(HealthWatch* watch) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = watches_.find(watch->name());
  found->second.erase(watch);
  if (found->second.empty()) watches_.erase(found);
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  const State state = StateOf(request->service());
  response->set_status(state);
  absl::Status status;
  if (state == HealthCheckResponse::SERVICE_UNKNOWN) {
    status = MakeError(Reason::kBlockNotFound,
                       absl::StrCat("\"", request->service(), "\": no such block"));
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status, "", context));
  return reactor;
}

grpc::ServerUnaryReactor* HealthService::List(grpc::CallbackServerContext* context,
                                              const grpc::health::v1::HealthListRequest*,
                                              grpc::health::v1::HealthListResponse* response) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& statuses = *response->mutable_statuses();
    statuses[""].set_status(Evaluate(""));
    for (const BlockStatus& block : registry_.List()) {
      statuses[block.name].set_status(BlockServes(block) ? HealthCheckResponse::SERVING
                                                         : HealthCheckResponse::NOT_SERVING);
    }
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext*, const HealthCheckRequest* request) {
  auto* watch = new HealthWatch(*this, request->service());
  std::lock_guard<std::mutex> lock(mutex_);
  watches_[watch->name()].insert(watch);
  watch->Show(Evaluate(watch->name()));
  if (ended_) watch->End();
  return watch;
}

}  // namespace fuseblock
