#include "server/reason.h"

#include <gtest/gtest.h>

#include <cctype>
#include <set>
#include <string>

namespace fuseblock {
namespace {

TEST(Reason, TheTableIsIndexedByTheEnumAndItsNamesAreUnique) {
  std::set<std::string_view> names, causes;
  int index = 0;
  for (const ReasonTraits& traits : AllReasons()) {
    EXPECT_EQ(static_cast<int>(traits.reason), index++);
    EXPECT_EQ(&Traits(traits.reason), &traits);
    EXPECT_TRUE(names.insert(traits.name).second) << traits.name;
    EXPECT_TRUE(causes.insert(traits.cause).second) << traits.cause;
    std::string lower(traits.name);
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    EXPECT_EQ(traits.cause, lower);
  }
  EXPECT_EQ(index, static_cast<int>(Reason::kInternal) + 1);
}

TEST(Reason, SurvivesTheWayThroughAStatus) {
  for (const ReasonTraits& traits : AllReasons()) {
    const absl::Status status = MakeError(traits.reason, "why", absl::Milliseconds(7));
    EXPECT_EQ(status.code(), traits.code);
    EXPECT_EQ(status.message(), "why");
    EXPECT_EQ(ReasonOf(status), traits.reason);
    const bool delay = traits.retry || traits.reason == Reason::kBlockNotReady;
    EXPECT_EQ(RetryAfterOf(status), delay ? absl::Milliseconds(7) : absl::ZeroDuration())
        << traits.name;
  }
}

TEST(Reason, ARefusalThatMayBeRetriedAlwaysNamesADelay) {
  EXPECT_GT(RetryAfterOf(MakeError(Reason::kQueueFull, "")), absl::ZeroDuration());
  // A block that failed to load does not come back by waiting.
  EXPECT_EQ(RetryAfterOf(MakeError(Reason::kBlockNotReady, "")), absl::ZeroDuration());
}

TEST(Reason, OfAStatusThatCarriesNone) {
  EXPECT_EQ(ReasonOf(absl::InvalidArgumentError("")), Reason::kBadTensor);
  EXPECT_EQ(ReasonOf(absl::CancelledError("")), Reason::kCancelled);
  EXPECT_EQ(ReasonOf(absl::InternalError("")), Reason::kInternal);
  EXPECT_EQ(ReasonOf(absl::NotFoundError("")), Reason::kInternal);
  EXPECT_EQ(RetryAfterOf(absl::UnavailableError("")), absl::ZeroDuration());
}

}  // namespace
}  // namespace fuseblock
