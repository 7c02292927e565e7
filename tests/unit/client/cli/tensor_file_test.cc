// Tensors in files: there and back in both formats, files as NumPy writes them, and damage.
#include "client/cli/tensor_file.h"

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "client/cli/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fuseblock::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string Path(const std::string& name) { return testing::TempDir() + "tensor_file_" + name; }

std::string Store(const std::string& name, const std::string& bytes) {
  const std::string path = Path(name);
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string Content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

FileTensor Make(const std::string& name, v1::DataType type, std::vector<int64_t> shape) {
  int64_t bytes = Traits(type).size;
  for (int64_t extent : shape) bytes *= extent;
  FileTensor tensor{name, type, std::move(shape), std::string(static_cast<size_t>(bytes), '\0')};
  for (size_t i = 0; i < tensor.data.size(); ++i) tensor.data[i] = static_cast<char>(i * 7 + 1);
  return tensor;
}

void ExpectEqual(const FileTensor& got, const FileTensor& expected) {
  EXPECT_EQ(got.name, expected.name);
  EXPECT_EQ(got.type, expected.type);
  EXPECT_EQ(got.shape, expected.shape);
  EXPECT_EQ(got.data, expected.data);
}

std::string Error(const std::string& path) {
  const auto tensors = ReadTensors(path);
  EXPECT_FALSE(tensors.ok());
  EXPECT_THAT(std::string(tensors.status().message()), HasSubstr(path));
  return std::string(tensors.status().message());
}

TEST(TensorFile, NpyThereAndBack) {
  for (const DataTypeTraits& traits : AllDataTypes()) {
    for (const std::vector<int64_t>& shape :
         std::vector<std::vector<int64_t>>{{}, {3}, {0, 4}, {2, 3, 4}}) {
      const FileTensor tensor = Make("", traits.type, shape);
      const std::string path = Path("round.npy");
      ASSERT_TRUE(WriteTensors(path, {tensor}).ok());
      const auto read = ReadTensors(path);
      ASSERT_TRUE(read.ok()) << read.status();
      ASSERT_EQ(read->size(), 1u);
      ExpectEqual((*read)[0], tensor);
      EXPECT_EQ((Content(path).size() - tensor.data.size()) % 64, 0u) << "NumPy aligns the data";
    }
  }
}

TEST(TensorFile, SafetensorsThereAndBack) {
  std::vector<FileTensor> tensors;
  for (const DataTypeTraits& traits : AllDataTypes()) {
    tensors.push_back(Make(absl::StrCat("t", traits.name), traits.type, {2, 3}));
  }
  tensors.push_back(Make("empty", v1::DATA_TYPE_BF16, {0, 5}));
  const std::string path = Path("round.safetensors");
  ASSERT_TRUE(WriteTensors(path, tensors).ok());
  const auto read = ReadTensors(path);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) ExpectEqual((*read)[i], tensors[i]);
}

// A .npy of version 1, byte for byte as NumPy writes it.
std::string Npy(const std::string& header, const std::string& data) {
  const auto length = static_cast<char>(header.size());
  return std::string("\x93NUMPY\x01\x00", 8) + length + '\0' + header + data;
}

TEST(TensorFile, ReadsWhatNumPyWrites) {
  const std::string path =
      Store("numpy.npy",
            Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }      \n", "abcdefgh"));
  const auto read = ReadTensors(path);
  ASSERT_TRUE(read.ok()) << read.status();
  ExpectEqual((*read)[0], {"", v1::DATA_TYPE_FP32, {2, 1}, "abcdefgh"});
}

TEST(TensorFile, DamagedNpyIsRefusedWithItsName) {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n";
  EXPECT_THAT(Error(Store("a.npy", "")), HasSubstr("not a .npy"));
  EXPECT_THAT(Error(Store("b.npy", Npy(good, "abcdefg"))), AllOf(HasSubstr("8"), HasSubstr("7")));
  EXPECT_THAT(Error(Store("c.npy", Npy(good, "").substr(0, 40))), HasSubstr("after the file"));
  EXPECT_THAT(Error(Store("d.npy", Npy("{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }",
                                       "abcdefgh"))),
              HasSubstr(">f4"));
  EXPECT_THAT(Error(Store("e.npy", Npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2,), }",
                                       "abcdefgh"))),
              HasSubstr("Fortran"));
  EXPECT_THAT(Error(Store("f.npy", Npy("{'descr': '<f4', 'fortran_order': False, 'shape': "
                                       "(9223372036854775807, 2), }",
                                       "abcdefgh"))),
              HasSubstr("-1 bytes"));
  EXPECT_THAT(Error(Store("g.npy", Npy("{'descr': [('a', '<f4')], }", ""))), HasSubstr("header"));
}

std::string Safetensors(const std::string& header, const std::string& data) {
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  return length + header + data;
}

TEST(TensorFile, DamagedSafetensorsIsRefusedWithFileAndTensor) {
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return absl::StrCat(R"({"w":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)",
                        offsets, "}}");
  };
  EXPECT_THAT(Error(Store("a.safetensors", "1234567")), HasSubstr("not a .safetensors"));
  EXPECT_THAT(Error(Store("b.safetensors", std::string(8, '\xFF') + "{}")),
              HasSubstr("after the file"));
  EXPECT_THAT(Error(Store("c.safetensors", Safetensors("{", ""))), HasSubstr("header"));
  EXPECT_THAT(Error(Store("d.safetensors", Safetensors(entry("F32", "[1]", "[0,8]"), "12345678"))),
              HasSubstr("w: "));
  EXPECT_THAT(Error(Store("e.safetensors", Safetensors(entry("F32", "[2]", "[4,12]"), "12345678"))),
              HasSubstr("w: "));
  EXPECT_THAT(Error(Store("f.safetensors", Safetensors(entry("F64", "[1]", "[0,8]"), "12345678"))),
              HasSubstr("F64"));
  EXPECT_THAT(Error(Store("g.safetensors", Safetensors(entry("F32", "[-1]", "[0,8]"), "12345678"))),
              HasSubstr("w: "));
  EXPECT_THAT(Error(Store("h.safetensors", Safetensors(R"({"w":{"dtype":"F32"}})", ""))),
              HasSubstr("header"));
}

TEST(TensorFile, SaysWhatANameShouldEndIn) {
  EXPECT_THAT(Error("x.bin"), HasSubstr(".npy or .safetensors"));
  EXPECT_THAT(Error(Path("missing.npy")), HasSubstr("No such file"));
  const auto two = WriteTensors(
      Path("two.npy"), {Make("y", v1::DATA_TYPE_FP32, {1}), Make("z", v1::DATA_TYPE_FP32, {1})});
  EXPECT_THAT(std::string(two.message()), HasSubstr("one tensor, got 2"));
  EXPECT_FALSE(WriteTensors("/nowhere/x.npy", {Make("y", v1::DATA_TYPE_FP32, {1})}).ok());
}

}  // namespace
}  // namespace fuseblock::cli
