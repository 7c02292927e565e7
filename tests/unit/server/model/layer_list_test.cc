// The notation "0-3,29".
#include "server/model/layer_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fuseblock {
namespace {

using ::testing::ElementsAre;

TEST(LayerListTest, ReadsNumbersAndRanges) {
  EXPECT_THAT(*ParseLayers("0-3,29", 30), ElementsAre(0, 1, 2, 3, 29));
  EXPECT_THAT(*ParseLayers("0", 1), ElementsAre(0));
  EXPECT_THAT(*ParseLayers("4-4", 5), ElementsAre(4));
  EXPECT_THAT(*ParseLayers(" 7 , 1-2 ", 8), ElementsAre(1, 2, 7));
}

TEST(LayerListTest, EmptyIsAll) { EXPECT_THAT(*ParseLayers("", 3), ElementsAre(0, 1, 2)); }

TEST(LayerListTest, RefusesWithThePiece) {
  const auto message = [](std::string_view text) {
    return std::string(ParseLayers(text, 30).status().message());
  };
  const std::string form = "expected a number or a range such as 0-3, got ";
  EXPECT_EQ(message("a"), "layers \"a\": " + form + "\"a\"");
  EXPECT_EQ(message("0,,2"), "layers \"0,,2\": " + form + "\"\"");
  EXPECT_EQ(message("1,"), "layers \"1,\": " + form + "\"\"");
  EXPECT_EQ(message(" "), "layers \" \": " + form + "\"\"");
  EXPECT_EQ(message("-1"), "layers \"-1\": " + form + "\"-1\"");
  EXPECT_EQ(message("1-"), "layers \"1-\": " + form + "\"1-\"");
  EXPECT_EQ(message("1-2-3"), "layers \"1-2-3\": " + form + "\"1-2-3\"");
  EXPECT_EQ(message("+1"), "layers \"+1\": " + form + "\"+1\"");
  EXPECT_EQ(message("1.0"), "layers \"1.0\": " + form + "\"1.0\"");
  EXPECT_EQ(message("0x1"), "layers \"0x1\": " + form + "\"0x1\"");
  EXPECT_EQ(message("99999999999999999999"),
            "layers \"99999999999999999999\": " + form + "\"99999999999999999999\"");
  EXPECT_EQ(message("3-0"), "layers \"3-0\": the range 3-0 runs backwards");
  EXPECT_EQ(message("30"), "layers \"30\": expected layers from 0 to 29, got 30");
  EXPECT_EQ(message("0-9223372036854775807"),
            "layers \"0-9223372036854775807\": expected layers from 0 to 29, got "
            "9223372036854775807");
  EXPECT_EQ(message("0-3,2"), "layers \"0-3,2\": layer 2 is named twice");
  EXPECT_EQ(message("5,5"), "layers \"5,5\": layer 5 is named twice");
}

}  // namespace
}  // namespace fuseblock
