// The safetensors reader: what it takes, and the words with which it refuses each kind of damage.
#include "server/model/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/support/checkpoint_files.h"

namespace fuseblock {
namespace {

using ::fuseblock::testing::FileTensor;
using ::fuseblock::testing::SafetensorsBytes;
using ::fuseblock::testing::TempFolder;

absl::StatusOr<SafetensorsHeader> Parse(const std::string& file) {
  return ParseSafetensorsHeader(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(file.data()), file.size()));
}

std::string Length(uint64_t length) {
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(length >> (8 * i));
  return out;
}

// A header padded to a multiple of 8, so that data begins aligned.
std::string Padded(std::string header) {
  header.append((8 - header.size() % 8) % 8, ' ');
  return header;
}

TEST(SafetensorsTest, ReadsNamesDTypesShapesAndRanges) {
  const std::string file =
      SafetensorsBytes(Padded(R"({"__metadata__":{"format":"pt"},)"
                              R"("b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
                              R"("a":{"shape":[],"data_offsets":[0,8],"dtype":"I64"},)"
                              R"("empty":{"dtype":"F32","shape":[0,4],"data_offsets":[20,20]}})"),
                       std::string(20, 'x'));
  const auto header = Parse(file);
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->size(), 3u);
  const uint64_t data = file.size() - 20;
  const SafetensorsEntry& b = header->at("b");
  EXPECT_EQ(b.dtype, "BF16");
  EXPECT_EQ(b.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(b.begin, data + 8);
  EXPECT_EQ(b.end, data + 20);
  EXPECT_TRUE(header->at("a").shape.empty());
  EXPECT_EQ(header->at("empty").begin, header->at("empty").end);
}

TEST(SafetensorsTest, TakesAFileWithoutTensors) {
  const auto header = Parse(SafetensorsBytes("{}", ""));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_TRUE(header->empty());
}

TEST(SafetensorsTest, ListsADTypeThatItDoesNotKnow) {
  const auto header =
      Parse(SafetensorsBytes(R"({"q":{"dtype":"Q3","shape":[7],"data_offsets":[0,3]}})", "abc"));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->at("q").dtype, "Q3");
}

struct Damage {
  const char* name;
  std::string file;
  std::string error;
};

std::string OneTensor(const std::string& fields, size_t data_bytes) {
  return SafetensorsBytes(Padded("{\"w\":{" + fields + "}}"), std::string(data_bytes, '\0'));
}

// The same with the fields that a tensor has; shape and offsets as in the header.
std::string Tensor(const char* dtype, const std::string& shape, const char* offsets,
                   size_t data_bytes) {
  return OneTensor(absl::StrCat("\"dtype\":\"", dtype, "\",\"shape\":[", shape,
                                "],\"data_offsets\":[", offsets, "]"),
                   data_bytes);
}

std::string Entry(const std::string& name, int64_t elements, size_t begin, size_t end) {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"F32\",\"shape\":[", elements,
                      "],\"data_offsets\":[", begin, ",", end, "]}");
}

std::string Tensors(const std::vector<std::string>& entries, size_t data_bytes) {
  return SafetensorsBytes(Padded(absl::StrCat("{", absl::StrJoin(entries, ","), "}")),
                          std::string(data_bytes, '\0'));
}

void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.name; }

std::vector<Damage> Damages() {
  const std::string good = Tensor("F32", "2", "0,8", 8);
  return {
      {"EmptyFile", "", "expected a safetensors file of at least 8 bytes, got 0"},
      {"SevenBytes", std::string(7, '\0'),
       "expected a safetensors file of at least 8 bytes, got 7"},
      {"NoHeader", Length(0), "expected the header to begin with '{'"},
      {"HeaderOf2To63", Length(uint64_t{1} << 63) + "{}",
       "expected a header of at most 100000000 bytes, got 9223372036854775808"},
      {"HeaderLengthOfAllOnes", Length(~uint64_t{0}) + "{}",
       "expected a header of at most 100000000 bytes, got 18446744073709551615"},
      {"HeaderJustAboveTheLimit", Length(100'000'001) + "{}",
       "expected a header of at most 100000000 bytes, got 100000001"},
      {"HeaderLongerThanTheFile", Length(3) + "{}",
       "expected a header of 3 bytes, got 2 (is the file truncated?)"},
      {"TruncatedHeader", good.substr(0, 20),
       "expected a header of 56 bytes, got 12 (is the file truncated?)"},
      {"TruncatedData", good.substr(0, good.size() - 1),
       "tensor 'w': data_offsets [0, 8] end outside the file's 7 bytes of data (is it "
       "truncated?)"},
      {"BytesBehindTheLastTensor", good + "x",
       "expected the file to end with its last tensor, at 72 bytes, got 73"},
      {"NotJson", SafetensorsBytes("{]", ""), "the header is not JSON at its byte 2"},
      {"NotUtf8", SafetensorsBytes("{\"\xff\":1}", ""), "the header is not JSON at its byte 3"},
      {"HeaderEndsEarly", SafetensorsBytes("{\"w\":{", ""), "the header is not JSON at its byte 7"},
      {"RubbishBehindTheHeader", SafetensorsBytes("{}{}", ""),
       "the header is not JSON at its byte 3"},
      {"LeadingBlank", SafetensorsBytes(" {}", ""), "expected the header to begin with '{'"},
      {"Array", SafetensorsBytes("[]", ""), "expected the header to begin with '{'"},
      {"TensorIsNoObject", SafetensorsBytes(R"({"w":[1]})", ""),
       "tensor 'w': the header has an array in a wrong place"},
      {"NestedDeeply", SafetensorsBytes("{\"w\":{\"shape\":" + std::string(100'000, '[') + "}", ""),
       "tensor 'w': the header has an array in a wrong place"},
      {"ObjectsNestedDeeply", SafetensorsBytes(R"({"w":{"dtype":{"dtype":{}}}})", ""),
       "tensor 'w': the header has an object in a wrong place"},
      {"MetadataIsNoText", SafetensorsBytes(R"({"__metadata__":{"a":1}})", ""),
       "tensor '__metadata__': the header has a number in a wrong place"},
      {"NameTwice", Tensors({Entry("w", 2, 0, 8), Entry("w", 2, 8, 16)}, 16),
       "tensor 'w': appears twice"},
      {"FieldTwice",
       OneTensor(R"("dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8])", 8),
       "tensor 'w': key 'dtype' appears twice"},
      {"UnknownField",
       OneTensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"strides":[1])", 8),
       "tensor 'w': unknown key 'strides'"},
      {"NoDType", OneTensor(R"("shape":[2],"data_offsets":[0,8])", 8), "tensor 'w': has no dtype"},
      {"NoShape", OneTensor(R"("dtype":"F32","data_offsets":[0,8])", 8),
       "tensor 'w': has no shape"},
      {"NoOffsets", OneTensor(R"("dtype":"F32","shape":[2])", 8),
       "tensor 'w': has no data_offsets"},
      {"NullDType", OneTensor(R"("dtype":null,"shape":[2],"data_offsets":[0,8])", 8),
       "tensor 'w': the header has null in a wrong place"},
      {"ShapeOfText", Tensor("F32", "\"2\"", "0,8", 8),
       "tensor 'w': the header has a string in a wrong place"},
      {"NegativeExtent", Tensor("F32", "-2", "0,8", 8),
       "tensor 'w': the header has the number -2 in a wrong place"},
      {"FractionalExtent", Tensor("F32", "2.0", "0,8", 8),
       "tensor 'w': the header has the number 2.0 in a wrong place"},
      {"ExtentOf2To63", Tensor("F32", "9223372036854775808", "0,8", 8),
       "tensor 'w': expected numbers below 2^63, got 9223372036854775808"},
      {"ExtentOf2To64", Tensor("F32", "18446744073709551616", "0,8", 8),
       "tensor 'w': the header has the number 18446744073709551616 in a wrong place"},
      {"ShapeProductOverflows", Tensor("F32", "4294967296,4294967296", "0,8", 8),
       "tensor 'w': shape [4294967296, 4294967296] overflows"},
      {"ShapeProductOverflowsBeforeAZero", Tensor("F32", "4294967296,4294967296,0", "0,0", 0),
       "tensor 'w': shape [4294967296, 4294967296, 0] overflows"},
      {"BytesOverflow", Tensor("F32", "4611686018427387904", "0,8", 8),
       "tensor 'w': shape [4611686018427387904] overflows"},
      {"SixtyFiveAxes", Tensor("F32", absl::StrJoin(std::vector<int>(65, 1), ","), "0,4", 4),
       "tensor 'w': expected at most 64 numbers in shape"},
      {"ThreeOffsets", Tensor("F32", "2", "0,8,9", 8),
       "tensor 'w': expected at most 2 numbers in data_offsets"},
      {"OneOffset", Tensor("F32", "2", "8", 8),
       "tensor 'w': expected 2 numbers in data_offsets, got 1"},
      {"UnorderedOffsets", Tensor("F32", "2", "8,0", 8),
       "tensor 'w': expected ordered data_offsets, got [8, 0]"},
      {"OffsetsOutsideTheFile", Tensor("F32", "2", "8,16", 8),
       "tensor 'w': data_offsets [8, 16] end outside the file's 8 bytes of data (is it "
       "truncated?)"},
      {"OffsetNear2To63", Tensor("F32", "2", "9223372036854775799,9223372036854775807", 8),
       "tensor 'w': data_offsets [9223372036854775799, 9223372036854775807] end outside the file's "
       "8 bytes of data (is it truncated?)"},
      {"FewerBytesThanTheShape", Tensor("F32", "2", "0,4", 4),
       "tensor 'w': expected 8 bytes for F32 [2], got 4"},
      {"MoreBytesThanTheShape", Tensor("BF16", "3", "0,8", 8),
       "tensor 'w': expected 6 bytes for BF16 [3], got 8"},
      {"HalfAByte", Tensor("F4", "3", "0,2", 2),
       "tensor 'w': shape [3] of F4 does not end at a byte"},
      {"Overlap", Tensors({Entry("v", 2, 0, 8), Entry("w", 2, 4, 12)}, 12),
       "tensor 'w': overlaps tensor 'v'"},
      {"SameRange", Tensors({Entry("v", 2, 0, 8), Entry("w", 2, 0, 8)}, 8),
       "tensor 'w': overlaps tensor 'v'"},
      {"Gap", Tensors({Entry("v", 2, 0, 8), Entry("w", 2, 12, 20)}, 20),
       "tensor 'w': leaves a gap of 4 bytes before it, at file offset 128"},
      {"Misaligned",
       Tensors({R"("v":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})", Entry("w", 2, 1, 9)}, 9),
       "tensor 'w': expected its data at a multiple of 4 bytes, got file offset 121"},
      {"NameWithControlCharacters", SafetensorsBytes(R"({"a\u0000\nb":1})", ""),
       "tensor 'a\\x00\\x0ab': the header has a number in a wrong place"},
      {"LongName", SafetensorsBytes("{\"" + std::string(1000, 'n') + "\":1}", ""),
       "tensor '" + std::string(200, 'n') + "...': the header has a number in a wrong place"},
  };
}

class DamagedHeader : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedHeader, IsRefusedWithItsName) {
  const auto header = Parse(GetParam().file);
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(header.status().message()), GetParam().error);
}

INSTANTIATE_TEST_SUITE_P(SafetensorsTest, DamagedHeader, ::testing::ValuesIn(Damages()),
                         [](const auto& instance) { return std::string(instance.param.name); });

// Whatever the length of a file that was cut: an error, never a crash or a tensor.
TEST(SafetensorsTest, RefusesAFileCutAtAnyByte) {
  const std::string good =
      SafetensorsBytes({{"a", "F32", {2}, std::string(8, 'a')}, {"b", "F16", {3}, "bbbbbb"}});
  ASSERT_TRUE(Parse(good).ok());
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(Parse(good.substr(0, size)).ok()) << size;
  }
}

TEST(SafetensorsFileTest, GivesViewsIntoTheMapping) {
  TempFolder folder;
  const std::string path = folder.Write(
      "m.safetensors",
      SafetensorsBytes({{"a", "F32", {2, 1}, testing::EncodeValues({1, -2}, DType::kF32)},
                        {"b", "BF16", {1}, testing::EncodeValues({3}, DType::kBF16)}}));
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto a = file->Find("a");
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(Describe(*a), "[2, 1] FP32");
  EXPECT_EQ(static_cast<const float*>(a->data)[1], -2.0f);
  EXPECT_EQ(file->Find("b")->dtype, DType::kBF16);
}

TEST(SafetensorsFileTest, RefusesADTypeThatNoBlockComputesInWhenItIsAskedFor) {
  TempFolder folder;
  const std::string path =
      folder.Write("m.safetensors", SafetensorsBytes({{"ids", "I64", {1}, std::string(8, '\0')},
                                                      {"ok", "F32", {1}, std::string(4, '\0')},
                                                      {"e4m3", "F8_E4M3", {2}, "xx"},
                                                      {"int8", "I8", {3}, "xxx"},
                                                      {"new", "Q9", {1}, "x"}}));
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->Find("ok").ok());
  for (const auto& [name, dtype] : std::vector<std::pair<std::string, std::string>>{
           {"e4m3", "F8_E4M3"}, {"int8", "I8"}, {"ids", "I64"}, {"new", "Q9"}}) {
    const auto view = file->Find(name);
    EXPECT_EQ(view.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(view.status().message(),
              path + ": tensor '" + name + "': expected F32, F16 or BF16, got " + dtype);
  }
}

TEST(SafetensorsFileTest, NamesTheFileInEveryError) {
  TempFolder folder;
  const std::string path = folder.Write("m.safetensors", "short");
  EXPECT_EQ(SafetensorsFile::Open(path).status().message(),
            path + ": expected a safetensors file of at least 8 bytes, got 5");
  const std::string none = folder.File("none.safetensors");
  EXPECT_EQ(SafetensorsFile::Open(none).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsFile::Open(none).status().message(),
            none + ": cannot open: No such file or directory");
  EXPECT_EQ(SafetensorsFile::Open(folder.path()).status().message(),
            folder.path() + ": expected a regular file");
  const std::string pipe = folder.File("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(SafetensorsFile::Open(pipe).status().message(), pipe + ": expected a regular file");
  const std::string good = folder.Write("good.safetensors", SafetensorsBytes("{}", ""));
  EXPECT_EQ(SafetensorsFile::Open(good)->Find("w").status().message(), good + ": no tensor 'w'");
}

TEST(SafetensorsFileTest, RefusesMoreAxesThanAViewHas) {
  TempFolder folder;
  const std::string path = folder.Write(
      "m.safetensors",
      SafetensorsBytes({{"w", "F32", std::vector<int64_t>(9, 1), std::string(4, '\0')}}));
  EXPECT_EQ(SafetensorsFile::Open(path)->Find("w").status().message(),
            path + ": tensor 'w': expected at most 8 axes, got 9");
}

}  // namespace
}  // namespace fuseblock
