// Revisions that come, answer, are rolled back and go while clients call: the program itself, by
// its admin port. No request may fail, and each is answered by one revision with that revision's
// bits.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "fuseblock/v1/admin_service.grpc.pb.h"
#include "tests/integration/server_fixture.h"

namespace fuseblock::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Admin = v1::AdminService::Stub;

class LifecycleTest : public ServerTest {
 protected:
  LifecycleTest() {
    model_.Write(folder_);
    TinyLlama other = model_;
    other.seed = 2;
    other.Write(other_);
  }

  void Start(std::vector<std::string> more = {}) {
    server_ = std::make_unique<ServerProcess>(Arguments(std::move(more)));
    ASSERT_NE(server_->AwaitLog("info ready"), "") << server_->log();
    client_ = std::make_unique<client::Client>(server_->Address("grpc"));
    channel_ = grpc::CreateChannel(server_->Address("admin"), grpc::InsecureChannelCredentials());
    admin_ = v1::AdminService::NewStub(channel_);
  }

  template <typename Request, typename Response>
  grpc::Status Call(grpc::Status (Admin::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    return (*admin_.*method)(&context, request, response);
  }
  grpc::Status Load(const std::string& path, const std::string& revision = "",
                    v1::LoadModelResponse* response = nullptr) {
    v1::LoadModelRequest request;
    request.set_model("m");
    request.set_path(path);
    request.set_revision(revision);
    v1::LoadModelResponse unread;
    return Call(&Admin::LoadModel, request, response != nullptr ? response : &unread);
  }
  grpc::Status Unload(const std::string& name, const std::string& revision,
                      v1::UnloadModelResponse* response = nullptr) {
    v1::UnloadModelRequest request;
    request.set_name(name);
    request.set_revision(revision);
    v1::UnloadModelResponse unread;
    return Call(&Admin::UnloadModel, request, response != nullptr ? response : &unread);
  }
  grpc::Status SetRevision(const std::string& name, const std::string& revision) {
    v1::SetRevisionRequest request;
    request.set_name(name);
    request.set_revision(revision);
    v1::SetRevisionResponse response;
    return Call(&Admin::SetRevision, request, &response);
  }
  // The revision that answers a request that asks for none.
  std::string Answering() {
    const auto answer = client_->Run(Mlp(2));
    EXPECT_EQ(answer.status(), absl::OkStatus());
    return answer.ok() ? answer->revision : "";
  }
  double WeightBytes() {
    int status = 0;
    return Metric(HttpGet(server_->Address("metrics"), "/metrics", &status),
                  "fuseblock_weights_bytes{block=\"m.layers.0.mlp\",device=\"cpu\"}");
  }

  TempFolder other_;  // the same model with other weights
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<client::Client> client_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Admin> admin_;
};

// Clients that call without end, and check each answer against the revision that gave it.
class Hammer {
 public:
  // expected: by revision. A revision that is not in it is a mistake.
  Hammer(const std::string& address, const client::Request& request,
         std::map<std::string, std::string> expected)
      : expected_(std::move(expected)) {
    for (int i = 0; i < 4; ++i) {
      threads_.emplace_back([this, address, request] {
        client::Client client(address);
        while (!stop_) Check(client.Run(request));
      });
    }
  }
  ~Hammer() { Stop(); }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  // Waits until that many more answers have come.
  void Await(int64_t answers) const {
    const int64_t until = answers_ + answers;
    while (answers_ < until) std::this_thread::yield();
  }
  std::string FirstMistake() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return mistake_;
  }
  int64_t answers() const { return answers_; }

 private:
  void Check(const absl::StatusOr<client::Answer>& answer) {
    std::string mistake;
    if (!answer.ok()) {
      mistake = answer.status().ToString();
    } else {
      const auto found = expected_.find(answer->revision);
      const absl::Span<const std::byte> bytes = answer->outputs[0].data;
      if (found == expected_.end()) {
        mistake = "answered by revision " + answer->revision;
      } else if (found->second !=
                 std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())) {
        mistake = "wrong bits from revision " + answer->revision;
      }
    }
    ++answers_;
    if (mistake.empty()) return;
    std::lock_guard<std::mutex> lock(mutex_);
    if (mistake_.empty()) mistake_ = mistake;
  }

  const std::map<std::string, std::string> expected_;
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> answers_ = 0;
  mutable std::mutex mutex_;
  std::string mistake_;
  std::vector<std::thread> threads_;
};

TEST_F(LifecycleTest, RevisionsComeAndGoUnderTrafficWithoutAFailedRequest) {
  Start();
  const std::string first = Alone(3), second = Alone(3, other_);
  ASSERT_NE(first, second);
  // Odd revisions are the folder's weights, even ones the other's.
  std::map<std::string, std::string> expected;
  for (int revision = 1; revision <= 12; ++revision) {
    expected[std::to_string(revision)] = revision % 2 == 1 ? first : second;
  }
  const double bytes_of_one = WeightBytes();
  Hammer hammer(server_->Address("grpc"), Mlp(3), expected);
  for (int newest = 2; newest <= 12; newest += 2) {
    const std::string old = std::to_string(newest - 1), fresh = std::to_string(newest);
    hammer.Await(20);
    v1::LoadModelResponse loaded;
    ASSERT_TRUE(Load(other_.path(), "", &loaded).ok());
    EXPECT_EQ(loaded.revision(), fresh);
    EXPECT_GT(loaded.blocks(), 0);
    EXPECT_GT(loaded.weight_bytes(), 0);
    EXPECT_EQ(Answering(), fresh);
    hammer.Await(20);
    ASSERT_TRUE(SetRevision("m", old).ok());
    EXPECT_EQ(Answering(), old) << "rolled back";
    hammer.Await(20);
    ASSERT_TRUE(SetRevision("m", "").ok());
    EXPECT_EQ(Answering(), fresh);
    ASSERT_TRUE(Unload("m", old).ok());
    EXPECT_EQ(WeightBytes(), bytes_of_one) << "the old revision's memory is free";
    if (newest == 12) break;
    ASSERT_TRUE(Load(folder_.path(), std::to_string(newest + 1)).ok());
    ASSERT_TRUE(Unload("m", fresh).ok());
  }
  hammer.Await(20);
  hammer.Stop();
  EXPECT_EQ(hammer.FirstMistake(), "");
  EXPECT_GT(hammer.answers(), 0);
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->Wait(), 0) << server_->log();
}

TEST_F(LifecycleTest, AFailingLoadLeavesWhatServedAndSaysWhatIsWrong) {
  Start();
  Hammer hammer(server_->Address("grpc"), Mlp(3), {{"1", Alone(3)}});
  hammer.Await(10);
  const double bytes = WeightBytes();
  grpc::Status status = Load(other_.path() + "/nothing");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("nothing/config.json"));
  // Cut off: the last tensor's bytes are not all there.
  std::filesystem::resize_file(other_.File("model.safetensors"),
                               std::filesystem::file_size(other_.File("model.safetensors")) - 8);
  status = Load(other_.path());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("model.safetensors"));
  EXPECT_THAT(status.error_details(), HasSubstr("BAD_ARGUMENT"));
  status = Load(folder_.path(), "1");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_details(), HasSubstr("CONFLICT"));
  EXPECT_THAT(status.error_message(), HasSubstr("has revision 1 already"));
  status = Load(folder_.path(), "one");
  EXPECT_EQ(status.error_message(),
            "revision: expected a positive integer in decimal, got \"one\"");
  v1::LoadModelRequest request;
  v1::LoadModelResponse response;
  request.set_model("a b");
  EXPECT_THAT(Call(&Admin::LoadModel, request, &response).error_message(),
              HasSubstr("model: expected a name"));
  request.set_model("n");
  EXPECT_THAT(Call(&Admin::LoadModel, request, &response).error_message(),
              HasSubstr("path: expected the checkpoint's folder"));
  request.set_dtype("FP8");
  EXPECT_THAT(Call(&Admin::LoadModel, request, &response).error_message(),
              HasSubstr("models.n.dtype: expected one of \"\", \"FP32\""));
  hammer.Await(20);
  hammer.Stop();
  EXPECT_EQ(hammer.FirstMistake(), "");
  EXPECT_EQ(Answering(), "1");
  EXPECT_EQ(WeightBytes(), bytes);
}

TEST_F(LifecycleTest, WhatIsLeftEmptyIsAsConfigured) {
  Start({"--set", "models.m.layers=1", "--set", "models.m.parts=mlp"});
  v1::LoadModelResponse loaded;
  ASSERT_TRUE(Load("", "7", &loaded).ok());
  EXPECT_EQ(loaded.blocks(), 1);
  const auto block = client_->GetBlock("m.layers.1.mlp");
  ASSERT_EQ(block.status(), absl::OkStatus());
  EXPECT_THAT(block->revisions(), ElementsAre("1", "7"));
  EXPECT_EQ(block->current_revision(), "7");
}

TEST_F(LifecycleTest, AFirstLoadThatFailsCanBeForgotten) {
  Start();
  v1::LoadModelRequest request;
  request.set_model("n");
  request.set_path(folder_.path());
  request.set_layers("0");
  request.set_parts("mlp");
  std::filesystem::resize_file(folder_.File("model.safetensors"), 100);
  v1::LoadModelResponse response;
  EXPECT_FALSE(Call(&Admin::LoadModel, request, &response).ok());
  EXPECT_EQ(client_->GetBlock("n.layers.0.mlp")->state(), v1::BLOCK_STATE_FAILED);
  EXPECT_TRUE(Unload("n", "").ok());
  EXPECT_EQ(client_->GetBlock("n.layers.0.mlp").status().code(), absl::StatusCode::kNotFound);
  model_.Write(folder_);
  EXPECT_TRUE(Call(&Admin::LoadModel, request, &response).ok());
  EXPECT_EQ(response.revision(), "1");
}

TEST_F(LifecycleTest, ConfigAndRunRecordSayHowItIsSetUp) {
  Start({"--set", "engine.lanes_per_device=3"});
  v1::GetConfigResponse config;
  ASSERT_TRUE(Call(&Admin::GetConfig, {}, &config).ok());
  EXPECT_THAT(config.toml(), HasSubstr("lanes_per_device = 3\n"));
  EXPECT_THAT(config.toml(), HasSubstr("[models.m]"));
  const std::string file = folder_.Write("again.toml", config.toml());
  EXPECT_EQ(RunServer({"--config", file, "--print-config"}).output, config.toml());
  v1::GetRunRecordResponse answer;
  ASSERT_TRUE(Call(&Admin::GetRunRecord, {}, &answer).ok());
  const v1::RunRecord& record = answer.record();
  const std::string version = RunServer({"--version"}).output;
  EXPECT_THAT(version, HasSubstr(record.version()));
  EXPECT_THAT(version, HasSubstr(record.commit()));
  EXPECT_THAT(record.build(), HasSubstr("GCC"));
  EXPECT_EQ(record.config_toml(), config.toml());
  EXPECT_GT(record.hardware().cores(), 0);
  EXPECT_GT(record.hardware().memory_bytes(), int64_t{1} << 20);
  EXPECT_NE(record.hardware().cpu(), "");
  ASSERT_EQ(record.hardware().devices_size(), 1);
  EXPECT_EQ(record.hardware().devices(0).name(), "cpu");
  EXPECT_EQ(record.libraries().at("grpc"), grpc::Version());
  EXPECT_EQ(record.seeds_size(), 0);
  EXPECT_GT(record.start_time().seconds(), 1700000000);
}

TEST_F(LifecycleTest, ACallDrainsTheServer) {
  Start();
  v1::DrainResponse drained;
  ASSERT_TRUE(Call(&Admin::Drain, {}, &drained).ok());
  EXPECT_TRUE(drained.complete());
  EXPECT_EQ(server_->Wait(), 0) << server_->log();
  EXPECT_EQ(client_->Run(Mlp(1)).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(LifecycleTest, TheAdminPortIsApartAndMayBeOff) {
  Start();
  // Nobody operates the server through the serving port.
  const auto wrong = v1::AdminService::NewStub(
      grpc::CreateChannel(server_->Address("grpc"), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::DrainResponse drained;
  EXPECT_EQ(wrong->Drain(&context, {}, &drained).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(Answering(), "1");
  ServerProcess off(Arguments({"--set", "admin.address="}));
  ASSERT_NE(off.AwaitLog("info ready"), "");
  EXPECT_THAT(off.log(), Not(HasSubstr("service=admin")));
}

}  // namespace
}  // namespace fuseblock::testing
