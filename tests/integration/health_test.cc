// grpc.health.v1: Check, List and Watch across load, device loss and drain; a watcher sees each
// change once and nothing else.
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/integration/rpc_fixture.h"

namespace fuseblock::testing {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using State = HealthCheckResponse::ServingStatus;

class HealthTest : public RpcFixture {
 protected:
  // One Watch call.
  class Watcher {
   public:
    Watcher(HealthTest& test, const std::string& service)
        : stub_(grpc::health::v1::Health::NewStub(test.channel_)) {
      HealthCheckRequest request;
      request.set_service(service);
      context_.set_deadline(absl::ToChronoTime(HangTime()));
      reader_ = stub_->Watch(&context_, request);
    }
    // The next state; blocks until there is one. UNKNOWN at the call's end.
    State Next() {
      HealthCheckResponse response;
      return reader_->Read(&response) ? response.status() : HealthCheckResponse::UNKNOWN;
    }
    grpc::Status Finish() { return reader_->Finish(); }
    void Cancel() { context_.TryCancel(); }

   private:
    grpc::ClientContext context_;
    std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
    std::unique_ptr<grpc::ClientReaderInterface<HealthCheckResponse>> reader_;
  };

  State Check(const std::string& service) {
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    grpc::ClientContext context;
    const grpc::Status status =
        grpc::health::v1::Health::NewStub(channel_)->Check(&context, request, &response);
    if (status.error_code() == grpc::StatusCode::NOT_FOUND) {
      return HealthCheckResponse::SERVICE_UNKNOWN;
    }
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.status();
  }
};

TEST_F(HealthTest, FollowsLoadingAndDraining) {
  Listen();
  EXPECT_EQ(Check(""), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check(kMlp), HealthCheckResponse::SERVICE_UNKNOWN);
  Watcher server(*this, ""), block(*this, kMlp);
  EXPECT_EQ(server.Next(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(block.Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  registry_.Declare(kMlp);
  EXPECT_EQ(block.Next(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check(kMlp), HealthCheckResponse::NOT_SERVING);
  ASSERT_EQ(Load("m"), absl::OkStatus());
  EXPECT_EQ(block.Next(), HealthCheckResponse::SERVING);
  EXPECT_EQ(Check(kMlp), HealthCheckResponse::SERVING);
  EXPECT_EQ(Check(""), HealthCheckResponse::NOT_SERVING) << "other models may still load";
  rpc_->health().SetPhase(HealthService::Phase::kServing);
  // NOT_SERVING is not said again: the next state is the change.
  EXPECT_EQ(server.Next(), HealthCheckResponse::SERVING);
  rpc_->health().SetPhase(HealthService::Phase::kDraining);
  EXPECT_EQ(server.Next(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(block.Next(), HealthCheckResponse::NOT_SERVING);
  rpc_->Shutdown(absl::InfiniteFuture());
  EXPECT_EQ(server.Next(), HealthCheckResponse::UNKNOWN);
  EXPECT_EQ(server.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(block.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(HealthTest, TheServerServesAsSoonAsOneOfItsBlocksDoes) {
  Listen();
  registry_.Declare(kMlp);
  rpc_->health().SetPhase(HealthService::Phase::kServing);
  Watcher server(*this, "");
  EXPECT_EQ(server.Next(), HealthCheckResponse::NOT_SERVING);
  ASSERT_EQ(Load("m"), absl::OkStatus());
  EXPECT_EQ(server.Next(), HealthCheckResponse::SERVING);
  server.Cancel();
}

TEST_F(HealthTest, ABlockThatIsTakenAwayIsUnknownAgain) {
  StartServer();
  Watcher block(*this, kMlp);
  EXPECT_EQ(block.Next(), HealthCheckResponse::SERVING);
  ASSERT_TRUE(registry_.Unload(kMlp, 0).ok());
  EXPECT_EQ(block.Next(), HealthCheckResponse::NOT_SERVING);
  registry_.Forget(kMlp);
  EXPECT_EQ(block.Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  block.Cancel();
}

TEST_F(HealthTest, ALostDeviceWithoutFallbackStopsServing) {
  engine_options_.devices = {kGpu};
  engine_options_.fallback = FallbackPolicy::kRefuse;
  StartServer();
  Watcher server(*this, ""), block(*this, kMlp);
  EXPECT_EQ(server.Next(), HealthCheckResponse::SERVING);
  EXPECT_EQ(block.Next(), HealthCheckResponse::SERVING);
  faults_->Inject(kGpu, Fault::kDeviceLost);
  EXPECT_FALSE(RunRaw(MlpRequest(1)).ok());
  EXPECT_EQ(server.Next(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(block.Next(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check(kMlp), HealthCheckResponse::NOT_SERVING);
}

TEST_F(HealthTest, ALostDeviceWithFallbackGoesOnServing) {
  engine_options_.devices = {kGpu, kCpu};
  StartServer();
  faults_->Inject(kGpu, Fault::kDeviceLost);
  EXPECT_TRUE(RunRaw(MlpRequest(1)).ok());
  EXPECT_EQ(Check(""), HealthCheckResponse::SERVING);
  EXPECT_EQ(Check(kMlp), HealthCheckResponse::SERVING);
}

TEST_F(HealthTest, ListsEveryService) {
  StartServer();
  grpc::health::v1::HealthListResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(grpc::health::v1::Health::NewStub(channel_)->List(&context, {}, &response).ok());
  EXPECT_EQ(response.statuses().size(), registry_.List().size() + 1);
  EXPECT_EQ(response.statuses().at("").status(), HealthCheckResponse::SERVING);
  EXPECT_EQ(response.statuses().at(kMlp).status(), HealthCheckResponse::SERVING);
  registry_.Declare("other.embed");
  grpc::ClientContext again;
  ASSERT_TRUE(grpc::health::v1::Health::NewStub(channel_)->List(&again, {}, &response).ok());
  EXPECT_EQ(response.statuses().at("other.embed").status(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(response.statuses().at(kMlp).status(), HealthCheckResponse::SERVING);
}

TEST_F(HealthTest, WatchersThatGoAreForgotten) {
  StartServer();
  for (int i = 0; i < 50; ++i) {
    Watcher watcher(*this, kMlp);
    EXPECT_EQ(watcher.Next(), HealthCheckResponse::SERVING);
    watcher.Cancel();
    EXPECT_EQ(watcher.Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  rpc_->health().SetPhase(HealthService::Phase::kDraining);
  EXPECT_EQ(Check(kMlp), HealthCheckResponse::NOT_SERVING);
}

}  // namespace
}  // namespace fuseblock::testing
