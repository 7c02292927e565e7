// Numbers and tables as they are printed where there is no terminal.
#include "client/cli/output.h"

#include <limits>

#include "gtest/gtest.h"

namespace fuseblock::cli {
namespace {

TEST(Output, GroupsDigitsByThousands) {
  EXPECT_EQ(Grouped(0), "0");
  EXPECT_EQ(Grouped(999), "999");
  EXPECT_EQ(Grouped(1000), "1,000");
  EXPECT_EQ(Grouped(-123456), "-123,456");
  EXPECT_EQ(Grouped(-100), "-100");
  EXPECT_EQ(Grouped(std::numeric_limits<int64_t>::max()), "9,223,372,036,854,775,807");
}

TEST(Output, ChoosesUnits) {
  EXPECT_EQ(BytesText(1023), "1023 B");
  EXPECT_EQ(BytesText(2304), "2.2 KiB");
  EXPECT_EQ(BytesText(int64_t{93} << 20), "93.0 MiB");
  EXPECT_EQ(MicrosecondsText(81.24), "81.2 us");
  EXPECT_EQ(MicrosecondsText(12345), "12.35 ms");
  EXPECT_EQ(MicrosecondsText(2.5e6), "2.50 s");
}

TEST(Output, AlignsColumnsByWhatATerminalShows) {
  testing::internal::CaptureStdout();
  PrintTable({"A", "B"}, {{{"\xc2\xb5s"}, {"x"}}, {{"abcd", Colour::kRed}, {"y"}}});
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "A     B\n\xc2\xb5s    x\nabcd  y\n");
}

}  // namespace
}  // namespace fuseblock::cli
