// JSON from files: what ParseJson refuses beyond the grammar.
#include "server/model/json.h"

#include <gtest/gtest.h>

namespace fuseblock {
namespace {

TEST(JsonTest, ReadsADocument) {
  const auto document = ParseJson(R"({"a":{"b":[1,2,{"b":3}]},"b":null})");
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_EQ((*document)["a"]["b"][2]["b"], 3);
}

TEST(JsonTest, RefusesWhatIsNoJsonWithItsPosition) {
  EXPECT_EQ(ParseJson("").status().message(), "not JSON at byte 1");
  EXPECT_EQ(ParseJson(R"({"a":})").status().message(), "not JSON at byte 6");
  EXPECT_EQ(ParseJson("{} x").status().message(), "not JSON at byte 4");
  EXPECT_FALSE(ParseJson("{\"\xff\":1}").ok());
}

TEST(JsonTest, RefusesAKeyThatAnObjectHasTwice) {
  EXPECT_EQ(ParseJson(R"({"a":1,"b":{"a":2},"a":3})").status().message(), "key 'a' appears twice");
  EXPECT_EQ(ParseJson(R"([{"x":[{"y":1,"y":1}]}])").status().message(), "key 'y' appears twice");
  EXPECT_TRUE(ParseJson(R"([{"x":1},{"x":2}])").ok());
}

TEST(JsonTest, BoundsTheNesting) {
  const auto nested = [](size_t depth) {
    return ParseJson(std::string(depth, '[') + std::string(depth, ']')).status();
  };
  EXPECT_TRUE(nested(64).ok()) << nested(64);
  EXPECT_EQ(nested(66).message(), "nested deeper than 64");
  EXPECT_EQ(nested(1'000'000).message(), "nested deeper than 64");
}

TEST(PrintableTest, EscapesAndCuts) {
  EXPECT_EQ(Printable("model.layers.0"), "model.layers.0");
  EXPECT_EQ(Printable(std::string_view("a\0\x1b[2J", 6)), "a\\x00\\x1b[2J");
  EXPECT_EQ(Printable("\"a\" '\xC3'"), "\"a\" '\\xc3'");
  EXPECT_EQ(Printable(std::string(201, 'x')), std::string(200, 'x') + "...");
}

}  // namespace
}  // namespace fuseblock
