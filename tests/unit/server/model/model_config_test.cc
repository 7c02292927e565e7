// config.json, field by field, and the words with which a field is refused.
#include "server/model/model_config.h"

#include <gtest/gtest.h>

namespace fuseblock {
namespace {

ModelConfig Config(const std::string& fields) {
  auto config = ModelConfig::Parse("{\"model_type\":\"llama\"" + fields + "}", "config.json");
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

template <typename T>
std::string Message(const absl::StatusOr<T>& result) {
  return std::string(result.status().message());
}

TEST(ModelConfigTest, NeedsAnObjectWithAModelType) {
  const auto message = [](std::string_view text) {
    return Message(ModelConfig::Parse(text, "/m/config.json"));
  };
  EXPECT_EQ(message("{"), "/m/config.json: not JSON at byte 2");
  EXPECT_EQ(message("[]"), "/m/config.json: expected a JSON object");
  EXPECT_EQ(message("{}"), "/m/config.json: model_type: expected a string, got nothing");
  EXPECT_EQ(message(R"({"model_type":7})"), "/m/config.json: model_type: expected a string, got 7");
  EXPECT_EQ(message(R"({"model_type":"a","model_type":"b"})"),
            "/m/config.json: key 'model_type' appears twice");
}

TEST(ModelConfigTest, ReadsSizes) {
  EXPECT_EQ(*Config(R"(,"n":576)").Size("n", 1000), 576);
  EXPECT_EQ(*Config(R"(,"n":1000)").Size("n", 1000), 1000);
  const std::string expected = "config.json: n: expected an integer from 1 to 1000, got ";
  EXPECT_EQ(Message(Config("").Size("n", 1000)), expected + "nothing");
  for (const char* value :
       {"0", "-1", "1001", "1.5", "576.0", "\"576\"", "true", "[576]", "18446744073709551615"}) {
    EXPECT_EQ(Message(Config(std::string(",\"n\":") + value).Size("n", 1000)), expected + value);
  }
}

TEST(ModelConfigTest, ReadsPositiveNumbers) {
  EXPECT_EQ(*Config(R"(,"eps":1e-05)").PositiveFloat("eps"), 1e-5f);
  EXPECT_EQ(*Config(R"(,"eps":1)").PositiveFloat("eps"), 1.0f);
  const std::string expected = "config.json: eps: expected a positive number, got ";
  // 1e-60 and 1e60 are 0 and infinity as FP32.
  for (const char* value : {"0", "-1e-06", "1e-60", "1e+60", "\"1e-5\"", "false"}) {
    EXPECT_EQ(Message(Config(std::string(",\"eps\":") + value).PositiveFloat("eps")),
              expected + value);
  }
  EXPECT_EQ(Message(Config("").PositiveFloat("eps")), expected + "nothing");
}

TEST(ModelConfigTest, ReadsFlags) {
  EXPECT_TRUE(*Config(R"(,"f":true)").Flag("f"));
  EXPECT_FALSE(*Config(R"(,"f":false)").Flag("f"));
  EXPECT_FALSE(*Config(R"(,"f":null)").Flag("f"));
  EXPECT_FALSE(*Config("").Flag("f"));
  EXPECT_EQ(Message(Config(R"(,"f":"yes")").Flag("f")),
            "config.json: f: expected true or false, got \"yes\"");
}

TEST(ModelConfigTest, ReadsTheSavedDTypeOfOldAndNewTransformers) {
  EXPECT_EQ(*Config(R"(,"dtype":"bfloat16")").SavedDType(), DType::kBF16);
  EXPECT_EQ(*Config(R"(,"torch_dtype":"float16")").SavedDType(), DType::kF16);
  EXPECT_EQ(*Config(R"(,"dtype":"float32","torch_dtype":"float16")").SavedDType(), DType::kF32);
  EXPECT_EQ(*Config("").SavedDType(), std::nullopt);
  const auto other = Config(R"(,"torch_dtype":"float64")").SavedDType();
  EXPECT_EQ(other.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(Message(other),
            "config.json: torch_dtype \"float64\" is not served: expected float32, float16 or "
            "bfloat16, or a dtype set for the model");
}

TEST(ModelConfigTest, RefusesAFieldThatIsNotNeutral) {
  EXPECT_TRUE(Config("").RequireNeutral("m", 1.0).ok());
  EXPECT_TRUE(Config(R"(,"m":null)").RequireNeutral("m", 1.0).ok());
  EXPECT_TRUE(Config(R"(,"m":1)").RequireNeutral("m", 1.0).ok());
  const absl::Status status = Config(R"(,"m":0.22)").RequireNeutral("m", 1.0);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(
      status.message(),
      "config.json: m 0.22 is not served: it changes the arithmetic of a llama model in a way "
      "that this family does not define");
}

}  // namespace
}  // namespace fuseblock
