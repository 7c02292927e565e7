// AdminService beside held lanes: a revision is unloaded while its requests wait and run.
#include "fuseblock/v1/admin_service.grpc.pb.h"
#include "server/rpc/admin_server.h"
#include "tests/integration/rpc_fixture.h"

namespace fuseblock::testing {
namespace {

using ::testing::HasSubstr;

class AdminTest : public RpcFixture {
 protected:
  void StartBoth() {
    ASSERT_NO_FATAL_FAILURE(StartServer());
    AdminService::Options options;
    options.load = [this](const std::string& name, const ModelSettings&, int64_t revision,
                          const std::function<bool()>&) -> absl::StatusOr<int64_t> {
      const absl::Status status = Load(name, revision);
      if (!status.ok()) return status;
      return revision;
    };
    auto server = AdminServer::Start("unix:" + folder_.File("admin"), std::move(options), registry_,
                                     *shadow_, metrics_);
    ASSERT_EQ(server.status(), absl::OkStatus());
    server_ = *std::move(server);
    admin_ = v1::AdminService::NewStub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }
  grpc::Status Unload(const std::string& name, const std::string& revision,
                      v1::UnloadModelResponse* response, grpc::ClientContext* context) {
    v1::UnloadModelRequest request;
    request.set_name(name);
    request.set_revision(revision);
    return admin_->UnloadModel(context, request, response);
  }
  double WeightBytes() const {
    return Counter("weights_bytes{block=\"" + std::string(kMlp) + "\",device=\"cpu\"}");
  }

  std::unique_ptr<AdminServer> server_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
};

// One request runs, 99 wait. The unload ends when the last of them has been answered.
TEST_F(AdminTest, UnloadWithAHundredRequestsInFlight) {
  constexpr int kRequests = 100;
  StartBoth();
  const std::string expected = Alone(kMlp, {X(2)})[0].bytes;
  const double bytes = WeightBytes();
  EXPECT_GT(bytes, 0);
  const client::Request request(kMlp, {ToClient("x", X(2))});
  std::vector<std::promise<absl::StatusOr<client::Answer>>> answers(kRequests);
  faults_->Hold(kCpu);
  for (auto& answer : answers) {
    client_->RunAsync(request, {}, [&answer](absl::StatusOr<client::Answer> result) {
      answer.set_value(std::move(result));
    });
  }
  Await("inflight_requests", kRequests);
  v1::UnloadModelResponse response;
  grpc::ClientContext context;
  auto unloaded =
      std::async(std::launch::async, [&] { return Unload("m", "", &response, &context); });
  // New ones are refused as soon as it has begun, and the block says so.
  const absl::Time hang = HangTime();
  while (registry_.Get(kMlp)->state != BlockState::kUnloading && absl::Now() < hang) {
    std::this_thread::yield();
  }
  grpc::Status refused = RunRaw(MlpRequest(1));
  EXPECT_EQ(DetailsOf(refused).reason, "BLOCK_NOT_READY");
  EXPECT_THAT(refused.error_message(), HasSubstr("is being unloaded"));
  EXPECT_EQ(client_->GetBlock(kMlp)->state(), v1::BLOCK_STATE_UNLOADING);
  EXPECT_EQ(WeightBytes(), bytes) << "those under way need it";
  faults_->Release(kCpu);
  for (auto& answer : answers) {
    const absl::StatusOr<client::Answer> result = answer.get_future().get();
    ASSERT_EQ(result.status(), absl::OkStatus());
    EXPECT_EQ(BytesOf(result->outputs[0]), expected);
  }
  ASSERT_TRUE(unloaded.get().ok());
  EXPECT_GT(response.blocks(), 0);
  EXPECT_GT(response.weight_bytes(), bytes);
  EXPECT_EQ(WeightBytes(), 0) << "the memory is free when the call returns";
  refused = RunRaw(MlpRequest(1));
  EXPECT_EQ(DetailsOf(refused).reason, "BLOCK_NOT_FOUND");
  // Nothing is left but that, and the model can come back.
  ASSERT_EQ(Load("m", 2), absl::OkStatus());
  ExpectStillServing();
}

TEST_F(AdminTest, AnUnloadWhoseCallerLeavesIsDoneAllTheSame) {
  StartBoth();
  faults_->Hold(kCpu);
  auto running = std::async(std::launch::async, [&] { return RunRaw(MlpRequest(1)); });
  faults_->AwaitHeld(kCpu, 1);
  v1::UnloadModelResponse response;
  grpc::ClientContext context;
  auto unloaded =
      std::async(std::launch::async, [&] { return Unload("m", "", &response, &context); });
  const absl::Time hang = HangTime();
  while (registry_.Get(kMlp).ok() && registry_.Get(kMlp)->state != BlockState::kUnloading &&
         absl::Now() < hang) {
    std::this_thread::yield();
  }
  context.TryCancel();
  EXPECT_EQ(unloaded.get().error_code(), grpc::StatusCode::CANCELLED);
  while (registry_.Get(kMlp).ok() && absl::Now() < hang) std::this_thread::yield();
  EXPECT_EQ(DetailsOf(RunRaw(MlpRequest(1))).reason, "BLOCK_NOT_FOUND");
  faults_->Release(kCpu);
  EXPECT_TRUE(running.get().ok());
  Await("weights_bytes{block=\"" + std::string(kMlp) + "\",device=\"cpu\"}", 0);
}

TEST_F(AdminTest, ShadowRunsAreSetAndCounted) {
  StartBoth();
  ASSERT_EQ(Load("m", 2), absl::OkStatus());
  const auto set = [&](double share, const std::string& revision, const std::string& backend) {
    grpc::ClientContext context;
    v1::SetShadowRequest request;
    request.set_name("m");
    request.set_share(share);
    request.set_revision(revision);
    request.set_backend(backend);
    v1::SetShadowResponse done;
    return admin_->SetShadow(&context, request, &done);
  };
  EXPECT_EQ(DetailsOf(set(2, "1", "")).reason, "BAD_ARGUMENT");
  EXPECT_EQ(DetailsOf(set(1, "", "")).reason, "BAD_ARGUMENT");
  EXPECT_EQ(DetailsOf(set(1, "", "tpu")).reason, "BAD_ARGUMENT");
  EXPECT_EQ(DetailsOf(set(1, "9", "")).reason, "BLOCK_NOT_FOUND");
  ASSERT_TRUE(set(1, "1", "").ok());
  v1::RunBlockResponse response;
  ASSERT_TRUE(RunRaw(MlpRequest(3), &response).ok());
  EXPECT_EQ(response.revision(), "2") << "the answer is the answering revision's";
  Await("shadow_total{block=\"" + std::string(kMlp) + "\",result=\"equal\"}", 1);
  ASSERT_TRUE(set(0, "", "").ok());
  ExpectStillServing();
  EXPECT_EQ(Counter("shadow_total{block=\"" + std::string(kMlp) + "\",result=\"equal\"}"), 1);
}

TEST_F(AdminTest, ErrorsNameTheModelAndTheReason) {
  StartBoth();
  ASSERT_EQ(Load("m", 2), absl::OkStatus());
  v1::UnloadModelResponse response;
  const auto unload = [&](const std::string& name, const std::string& revision) {
    grpc::ClientContext context;
    return Unload(name, revision, &response, &context);
  };
  const auto set = [&](const std::string& name, const std::string& revision) {
    grpc::ClientContext context;
    v1::SetRevisionRequest request;
    request.set_name(name);
    request.set_revision(revision);
    v1::SetRevisionResponse done;
    return admin_->SetRevision(&context, request, &done);
  };
  EXPECT_EQ(DetailsOf(unload("nobody", "")).reason, "BLOCK_NOT_FOUND");
  EXPECT_EQ(DetailsOf(unload("m", "9")).reason, "BLOCK_NOT_FOUND");
  EXPECT_EQ(DetailsOf(unload("m", "-1")).reason, "BAD_ARGUMENT");
  EXPECT_EQ(DetailsOf(set("m", "9")).reason, "BLOCK_NOT_FOUND");
  EXPECT_EQ(DetailsOf(set("m", "x")).reason, "BAD_ARGUMENT");
  EXPECT_EQ(DetailsOf(set("nobody", "")).block, "nobody");
  EXPECT_TRUE(set("m", "1").ok());
  EXPECT_EQ(DetailsOf(unload("m", "1")).reason, "CONFLICT");
  EXPECT_EQ(Counter("errors_total{category=\"block_not_found\"}"), 4);
  EXPECT_EQ(Counter("errors_total{category=\"bad_argument\"}"), 2);
  EXPECT_EQ(Counter("errors_total{category=\"conflict\"}"), 1);
  EXPECT_TRUE(unload(kMlp, "2").ok());
  EXPECT_EQ(response.blocks(), 1);
  EXPECT_EQ(Served(kMlp)->revision, 1);
  v1::LoadModelRequest request;
  request.set_model("n");
  request.set_path(folder_.path());
  request.set_revision("3");
  v1::LoadModelResponse loaded;
  grpc::ClientContext context;
  ASSERT_TRUE(admin_->LoadModel(&context, request, &loaded).ok());
  EXPECT_EQ(loaded.revision(), "3");
  EXPECT_EQ(loaded.blocks(), static_cast<int>(registry_.List("n.").size()));
}

}  // namespace
}  // namespace fuseblock::testing
