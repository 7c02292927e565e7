// The program itself, serving a tiny Llama that the test wrote, and what its block answers.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "client/cpp/client.h"
#include "server/model/loader.h"
#include "tests/integration/server_process.h"
#include "tests/support/checkpoint_files.h"
#include "tests/support/run_block.h"

namespace fuseblock::testing {

class ServerTest : public ::testing::Test {
 protected:
  // Arguments that listen on free ports, with the model in the folder.
  std::vector<std::string> Arguments(std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {
        "--set",   "server.address=127.0.0.1:0", "--set", "metrics.address=127.0.0.1:0",
        "--set",   "admin.address=127.0.0.1:0",  "--set", "devices=cpu",
        "--model", "m=" + folder_.path()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  // x of the tiny model, as bytes.
  std::string X(int64_t tokens) const {
    std::vector<float> values(static_cast<size_t>(tokens * model_.hidden));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(static_cast<int>(i * 7 % 31) - 15) / 16;
    }
    return EncodeValues(values, DType::kF32);
  }
  client::Request Mlp(int64_t tokens, const std::string& revision = "") const {
    const std::string x = X(tokens);
    return client::Request("m.layers.0.mlp",
                           {{"x", v1::DATA_TYPE_FP32, {tokens, model_.hidden}, client::Bytes(x)}},
                           revision);
  }

  // The same block, loaded and run here.
  std::string Alone(int64_t tokens) const { return Alone(tokens, folder_); }
  std::string Alone(int64_t tokens, const TempFolder& folder) const {
    BlockRegistry registry;
    ModelOptions options;
    options.name = "m";
    options.path = folder.path();
    options.layers = "0";
    options.parts = {"mlp"};
    EXPECT_EQ(LoadModel(options, {Device{}}, registry,
                        [](const ServedBlock&, int) { return absl::OkStatus(); }),
              absl::OkStatus());
    const auto block = registry.Find("m.layers.0.mlp", "");
    const auto outputs =
        RunOnCpu(*(*block)->On(Device{}), {{DType::kF32, {tokens, model_.hidden}, X(tokens)}});
    return (*outputs)[0].bytes;
  }
  static std::string BytesOf(const client::Tensor& tensor) {
    return {reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()};
  }

  static double Metric(const std::string& text, const std::string& sample) {
    const size_t found = text.find("\n" + sample + " ");
    return found == std::string::npos ? -1 : std::atof(text.c_str() + found + sample.size() + 2);
  }

  TempFolder folder_;
  TinyLlama model_;
};

}  // namespace fuseblock::testing
