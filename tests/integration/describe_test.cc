// What the server says of itself: ListBlocks, GetBlock and reflection.
#include "absl/strings/str_cat.h"
#include "kernels/block/block.h"
#include "tests/integration/rpc_fixture.h"

namespace fuseblock::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using DescribeTest = RpcFixture;

TEST_F(DescribeTest, ListsByPrefix) {
  StartServer();
  const auto blocks = client_->ListBlocks();
  ASSERT_EQ(blocks.status(), absl::OkStatus());
  EXPECT_EQ(blocks->size(), registry_.List().size());
  EXPECT_EQ(client_->ListBlocks("m.layers.0.")->size(), 4u);
  EXPECT_EQ(client_->ListBlocks("nothing")->size(), 0u);
}

TEST_F(DescribeTest, TellsWhatABlockTakesAndIs) {
  StartServer();
  const auto block = client_->GetBlock("m.layers.0.ffn_norm", "1");
  ASSERT_EQ(block.status(), absl::OkStatus());
  const auto served = Served("m.layers.0.ffn_norm");
  EXPECT_EQ(block->name(), "m.layers.0.ffn_norm");
  EXPECT_EQ(block->kind(), "norm_residual");
  EXPECT_EQ(block->family(), "llama");
  EXPECT_EQ(block->formula(), Block::Formula(served->spec));
  EXPECT_EQ(block->rounding(), "fused");
  EXPECT_EQ(block->content_hash(), served->content_hash);
  EXPECT_EQ(block->hidden_size(), model_.hidden);
  EXPECT_EQ(client_->GetBlock(kMlp)->intermediate_size(), model_.intermediate);
  EXPECT_THAT(block->backends(), ElementsAre("cpu"));
  EXPECT_EQ(block->weight_bytes(), static_cast<int64_t>(served->On(kCpu)->weight_bytes()));
  EXPECT_EQ(block->max_request_tokens(), 4096);
  EXPECT_EQ(block->state(), v1::BLOCK_STATE_READY);
  ASSERT_EQ(block->inputs_size(), 2);
  for (const v1::TensorSpec& input : block->inputs()) {
    const bool residual = input.name() == "residual";
    EXPECT_EQ(input.name(), residual ? "residual" : "x");
    EXPECT_EQ(input.optional(), residual);
    EXPECT_THAT(input.data_types(), ElementsAre(v1::DATA_TYPE_BF16));
    EXPECT_THAT(input.shape(), ElementsAre(-1, model_.hidden));
  }
  ASSERT_EQ(block->outputs_size(), 2);
  EXPECT_EQ(block->outputs(1).name(), "residual_out");
  EXPECT_TRUE(block->outputs(1).optional());
  const auto embed = client_->GetBlock("m.embed");
  EXPECT_THAT(embed->inputs(0).shape(), ElementsAre(-1));
  EXPECT_THAT(embed->inputs(0).data_types(), ElementsAre(v1::DATA_TYPE_INT32, v1::DATA_TYPE_INT64));
}

TEST_F(DescribeTest, TellsRevisionsApart) {
  StartServer();
  const std::string first = Served(kMlp)->content_hash;
  model_.seed = 2;
  ASSERT_EQ(Load("m", 2), absl::OkStatus());
  const auto newest = client_->GetBlock(kMlp);
  EXPECT_THAT(newest->revisions(), ElementsAre("1", "2"));
  EXPECT_EQ(newest->current_revision(), "2");
  EXPECT_NE(newest->content_hash(), first);
  EXPECT_EQ(client_->GetBlock(kMlp, "1")->content_hash(), first);
  v1::RunBlockResponse response;
  v1::RunBlockRequest request = MlpRequest(2);
  ASSERT_TRUE(RunRaw(request, &response).ok());
  EXPECT_EQ(response.revision(), "2");
  request.set_revision("1");
  ASSERT_TRUE(RunRaw(request, &response).ok());
  EXPECT_EQ(response.revision(), "1");
}

TEST_F(DescribeTest, UnknownNamesAndRevisionsAreNotFound) {
  StartServer();
  for (const auto& unknown :
       {client_->GetBlock("m.layers.0.ffn_norm", "7").status(), client_->GetBlock("no").status()}) {
    EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(client::ErrorOf(unknown).reason, "BLOCK_NOT_FOUND");
  }
  EXPECT_EQ(Counter("errors_total{category=\"block_not_found\"}"), 2);
}

TEST_F(DescribeTest, TellsWhyABlockIsNotReady) {
  Listen();
  registry_.Declare(kMlp);
  EXPECT_EQ(client_->GetBlock(kMlp)->state(), v1::BLOCK_STATE_LOADING);
  registry_.Fail(kMlp, "model.safetensors: cut short");
  const auto failed = client_->GetBlock(kMlp);
  EXPECT_EQ(failed->state(), v1::BLOCK_STATE_FAILED);
  EXPECT_EQ(failed->state_reason(), "model.safetensors: cut short");
  EXPECT_EQ(failed->current_revision(), "");
}

TEST_F(DescribeTest, ReflectionKnowsEveryService) {
  StartServer();
  const std::string method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  std::string answer;
  ASSERT_TRUE(RawCall(method, std::string("\x3a\0", 2), &answer).ok());  // list_services = 7
  for (const std::string service : {"fuseblock.v1.BlockService", "grpc.health.v1.Health"}) {
    EXPECT_THAT(answer, HasSubstr(service));
    // file_containing_symbol = 4: what grpcurl needs to call it
    std::string file;
    const std::string request = absl::StrCat("\x22", std::string(1, char(service.size())), service);
    ASSERT_TRUE(RawCall(method, request, &file).ok());
    EXPECT_THAT(file, HasSubstr("Response"));
  }
}

}  // namespace
}  // namespace fuseblock::testing
