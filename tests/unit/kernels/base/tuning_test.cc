// Measured numbers: measured once, kept in a file for the next process of the same build, and never
// taken from a file that is something else.
#include "kernels/base/tuning.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace fuseblock {
namespace {

constexpr char kBuild[] = "1.0 (abc)";

class Tuning : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "/tuning_" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::remove(path_.c_str());
    Forget();
  }
  void TearDown() override {
    Forget();
    std::remove(path_.c_str());
  }
  // As a process that starts.
  void Forget() { ASSERT_TRUE(UseTuningFile("", kBuild).ok()); }

  absl::StatusOr<int64_t> Number(std::string_view key, absl::StatusOr<int64_t> measured) {
    return Tuned(key, [&] {
      ++measurements_;
      return measured;
    });
  }
  std::string Text() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  void Put(const std::string& text) const { std::ofstream(path_) << text; }

  std::string path_;
  int measurements_ = 0;
};

TEST_F(Tuning, AKeyIsMeasuredOnce) {
  EXPECT_EQ(Number("a", 5).value(), 5);
  EXPECT_EQ(Number("a", 6).value(), 5);
  EXPECT_EQ(Number("b", -7).value(), -7);
  EXPECT_EQ(measurements_, 2);
}

TEST_F(Tuning, AnErrorIsReturnedAndNotKept) {
  EXPECT_EQ(Number("a", absl::ResourceExhaustedError("full")).status(),
            absl::ResourceExhaustedError("full"));
  EXPECT_EQ(Number("a", 5).value(), 5);
}

TEST_F(Tuning, TheNextProcessTakesTheNumberFromTheFile) {
  ASSERT_TRUE(UseTuningFile(path_, kBuild).ok());
  EXPECT_EQ(Number("device 0, down of 8192/28672", 1024).value(), 1024);
  EXPECT_EQ(Number("another", 3).value(), 3);
  EXPECT_EQ(Text(),
            "fuseblock tuning of build 1.0 (abc)\n3 another\n1024 device 0, down of 8192/28672\n");
  Forget();
  ASSERT_TRUE(UseTuningFile(path_, kBuild).ok());
  EXPECT_EQ(Number("device 0, down of 8192/28672", 9).value(), 1024);
  EXPECT_EQ(measurements_, 2);
}

TEST_F(Tuning, AFileOfAnotherBuildAndAnEmptyOneAreBegunAnew) {
  for (const char* text : {"fuseblock tuning of build 0.9\n3 a\n4 b\n", ""}) {
    Put(text);
    ASSERT_TRUE(UseTuningFile(path_, kBuild).ok());
    EXPECT_EQ(Number("a", 5).value(), 5);
    EXPECT_EQ(Text(), "fuseblock tuning of build 1.0 (abc)\n5 a\n");
  }
}

TEST_F(Tuning, WhatIsNoTuningFileIsRefusedAndLeftAsItIs) {
  for (const auto& [text, error] : std::initializer_list<std::pair<std::string, std::string>>{
           {"config_version = 1\n",
            ":1: expected \"fuseblock tuning of build ...\", got "
            "\"config_version = 1\""},
           {"fuseblock tuning of build 1.0 (abc)\nx a\n",
            ":2: expected \"NUMBER KEY\", got \"x a\""},
           {"fuseblock tuning of build 1.0 (abc)\n3 a\n4\n",
            ":3: expected \"NUMBER KEY\", got \"4\""},
           {"fuseblock tuning of build 1.0 (abc)\n99999999999999999999 a\n",
            ":2: expected \"NUMBER KEY\", got \"99999999999999999999 a\""}}) {
    Put(text);
    EXPECT_EQ(UseTuningFile(path_, kBuild), absl::InvalidArgumentError(path_ + error));
    EXPECT_EQ(Number("a", 5).value(), 5);
    EXPECT_EQ(Text(), text);
  }
}

TEST_F(Tuning, AFileThatCannotBeWrittenIsDoneWithout) {
  ASSERT_TRUE(UseTuningFile(path_ + "/no/folder", kBuild).ok());
  EXPECT_EQ(Number("a", 5).value(), 5);
  EXPECT_EQ(Number("a", 6).value(), 5);
}

}  // namespace
}  // namespace fuseblock
