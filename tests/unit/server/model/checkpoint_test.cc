// Checkpoints of one file and of shards, and what is refused in each.
#include "server/model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/checkpoint_files.h"

namespace fuseblock {
namespace {

using ::fuseblock::testing::EncodeValues;
using ::fuseblock::testing::FileTensor;
using ::fuseblock::testing::SafetensorsBytes;
using ::fuseblock::testing::TempFolder;
using ::testing::ElementsAre;

FileTensor Scalar(const std::string& name, float value) {
  return {name, "F32", {1}, EncodeValues({value}, DType::kF32)};
}

float ValueOf(const Checkpoint& checkpoint, const std::string& name) {
  const auto view = checkpoint.Find(name, {1});
  EXPECT_TRUE(view.ok()) << view.status();
  return view.ok() ? *static_cast<const float*>(view->data) : -1.0f;
}

template <typename T>
std::string Message(const absl::StatusOr<T>& result) {
  return std::string(result.status().message());
}

TEST(CheckpointTest, ReadsOneFile) {
  TempFolder folder;
  folder.Write("model.safetensors", SafetensorsBytes({Scalar("b", 2), Scalar("a", 1)}));
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(checkpoint->names(), ElementsAre("a", "b"));
  EXPECT_EQ(ValueOf(*checkpoint, "a"), 1.0f);
  EXPECT_EQ(ValueOf(*checkpoint, "b"), 2.0f);
}

TEST(CheckpointTest, ReadsShardsAndOpensOnlyThoseAskedFor) {
  TempFolder folder;
  folder.Write("model.safetensors.index.json",
               R"({"metadata":{"total_size":12},"weight_map":{"a":"x-1.safetensors",)"
               R"("b":"x-2.safetensors","c":"absent.safetensors"}})");
  folder.Write("x-1.safetensors", SafetensorsBytes({Scalar("a", 1), Scalar("unlisted", 9)}));
  folder.Write("x-2.safetensors", SafetensorsBytes({Scalar("b", 2)}));
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(checkpoint->names(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(ValueOf(*checkpoint, "b"), 2.0f);
  EXPECT_EQ(ValueOf(*checkpoint, "a"), 1.0f);
  EXPECT_EQ(checkpoint->FileOf("b"), folder.File("x-2.safetensors"));
  const auto missing = checkpoint->Find("c", {1});
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Message(missing), folder.File("absent.safetensors") +
                                  ": cannot open: No such file or directory (for tensor 'c')");
}

TEST(CheckpointTest, ReadsAFolderOfLinks) {
  // A hub cache's snapshot holds links to the files.
  TempFolder store, folder;
  store.Write("blob", SafetensorsBytes({Scalar("a", 3)}));
  std::filesystem::create_symlink(store.File("blob"), folder.File("model.safetensors"));
  const auto checkpoint = Checkpoint::Open(folder.path() + "/");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(ValueOf(*checkpoint, "a"), 3.0f);
}

TEST(CheckpointTest, RefusesATensorThatTheIndexHasAndTheShardHasNot) {
  TempFolder folder;
  folder.Write("model.safetensors.index.json", R"({"weight_map":{"a":"x.safetensors"}})");
  folder.Write("x.safetensors", SafetensorsBytes({Scalar("b", 2)}));
  const auto view = Checkpoint::Open(folder.path())->Find("a", {1});
  EXPECT_EQ(view.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Message(view), folder.File("x.safetensors") + ": no tensor 'a'");
}

TEST(CheckpointTest, RefusesShardsOutsideTheFolder) {
  for (const char* file :
       {"../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..\\\\x.safetensors",
        ".x.safetensors", "..", "", "x.bin", "x.safetensors/", "a\\u0000.safetensors"}) {
    TempFolder folder;
    folder.Write("model.safetensors.index.json",
                 std::string(R"({"weight_map":{"a":")") + file + "\"}}");
    const auto checkpoint = Checkpoint::Open(folder.path());
    EXPECT_EQ(checkpoint.status().code(), absl::StatusCode::kInvalidArgument) << file;
    EXPECT_THAT(Message(checkpoint),
                ::testing::StartsWith(
                    folder.File("model.safetensors.index.json") +
                    ": tensor 'a': expected the name of a .safetensors file in this folder, got "))
        << file;
  }
}

TEST(CheckpointTest, RefusesADamagedIndex) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "not JSON at byte 1"},
      {"[]", "expected an object weight_map"},
      {"{}", "expected an object weight_map"},
      {R"({"weight_map":[]})", "expected an object weight_map"},
      {R"({"weight_map":{"a":7}})",
       "tensor 'a': expected the name of a .safetensors file in this folder, got 7"},
      {R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})", "key 'a' appears twice"},
  };
  for (const auto& [text, error] : cases) {
    TempFolder folder;
    const std::string path = folder.Write("model.safetensors.index.json", text);
    EXPECT_EQ(Message(Checkpoint::Open(folder.path())), path + ": " + error);
  }
}

TEST(CheckpointTest, SaysWhatItLookedFor) {
  TempFolder folder;
  EXPECT_EQ(Checkpoint::Open(folder.path()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(
      Message(Checkpoint::Open(folder.path())),
      folder.path() + ": expected model.safetensors or model.safetensors.index.json, got neither");
}

TEST(CheckpointTest, RefusesAnotherShape) {
  TempFolder folder;
  const std::string path = folder.Write(
      "model.safetensors", SafetensorsBytes({{"w", "F16", {2, 3}, std::string(12, '\0')}}));
  const auto checkpoint = Checkpoint::Open(folder.path());
  EXPECT_TRUE(checkpoint->Find("w", {2, 3}).ok());
  EXPECT_EQ(checkpoint->Find("w", {3, 2}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(checkpoint->Find("w", {3, 2})),
            path + ": tensor 'w': expected shape [3, 2], got [2, 3]");
  EXPECT_EQ(Message(checkpoint->Find("w", {6})),
            path + ": tensor 'w': expected shape [6], got [2, 3]");
  EXPECT_EQ(Message(checkpoint->Find("v", {1})), path + ": no tensor 'v'");
}

TEST(CheckpointTest, FindsNamesByPrefix) {
  TempFolder folder;
  folder.Write("model.safetensors",
               SafetensorsBytes({Scalar("l.1.a", 0), Scalar("l.1.b", 0), Scalar("l.10.a", 0),
                                 Scalar("l.2.a", 0), Scalar("m", 0)}));
  const auto checkpoint = Checkpoint::Open(folder.path());
  EXPECT_THAT(checkpoint->WithPrefix("l.1."), ElementsAre("l.1.a", "l.1.b"));
  EXPECT_THAT(checkpoint->WithPrefix("l.3."), ElementsAre());
  EXPECT_EQ(checkpoint->WithPrefix("").size(), 5u);
}

TEST(CheckpointTest, FindsTheBasePrefix) {
  const auto prefix = [](std::vector<std::string> names) {
    TempFolder folder;
    std::vector<FileTensor> tensors;
    for (const std::string& name : names) tensors.push_back(Scalar(name, 0));
    const std::string path = folder.Write("model.safetensors", SafetensorsBytes(tensors));
    const auto result = Checkpoint::Open(folder.path())->BasePrefix("layers.0.n.weight");
    if (result.ok()) return *result;
    return std::string(result.status().message()).substr(path.size());
  };
  EXPECT_EQ(prefix({"model.layers.0.n.weight", "model.layers.1.n.weight"}), "model.");
  EXPECT_EQ(prefix({"layers.12.n.weight"}), "");
  EXPECT_EQ(prefix({"base_model.model.model.layers.3.n.weight"}), "base_model.model.model.");
  // Names that only look alike.
  EXPECT_EQ(prefix({"sublayers.0.n.weight", "layers.0.in.weight", "layers.x.n.weight",
                    "layers..n.weight", "n.weight", ".n.weight", "0.n.weight"}),
            ": no tensor 'model.layers.0.n.weight'");
  EXPECT_EQ(prefix({"language_model.layers.0.n.weight", "vision.layers.0.n.weight"}),
            ": expected one prefix of 'layers.0.n.weight', got 'language_model.' and 'vision.'");
}

TEST(CheckpointTest, ReleasedPagesAreReadAgain) {
  TempFolder folder;
  std::vector<float> values(100'000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  folder.Write("model.safetensors",
               SafetensorsBytes({{"w", "F32", {100'000}, EncodeValues(values, DType::kF32)}}));
  const auto checkpoint = Checkpoint::Open(folder.path());
  const auto view = checkpoint->Find("w", {100'000});
  ASSERT_TRUE(view.ok()) << view.status();
  const float* data = static_cast<const float*>(view->data);
  EXPECT_EQ(data[99'999], 99'999.0f);
  checkpoint->Release(*view);
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(data[i], values[i]);
}

}  // namespace
}  // namespace fuseblock
