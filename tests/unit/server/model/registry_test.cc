// The block registry's states, who is told of them, and that readers never see half a model.
#include "server/model/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "server/reason.h"

namespace fuseblock {
namespace {

using ::testing::ElementsAre;

std::shared_ptr<const ServedBlock> MakeBlock(const std::string& name, int64_t revision = 1) {
  auto block = std::make_shared<ServedBlock>();
  block->name = name;
  block->revision = revision;
  return block;
}

Reason ReasonFor(const BlockRegistry& registry, std::string_view name,
                 std::string_view revision = "") {
  const auto found = registry.Find(name, revision);
  EXPECT_FALSE(found.ok());
  return ReasonOf(found.status());
}

TEST(RegistryTest, UnknownNamesAreNotFound) {
  BlockRegistry registry;
  EXPECT_EQ(ReasonFor(registry, "m.x"), Reason::kBlockNotFound);
  EXPECT_EQ(registry.Find("m.x", "").status().message(), "no block 'm.x'");
  EXPECT_EQ(ReasonOf(registry.Get("m.x").status()), Reason::kBlockNotFound);
  // A client's name comes back short and printable.
  EXPECT_EQ(registry.Find(std::string(1000, 'n'), "").status().message(),
            "no block '" + std::string(128, 'n') + "...'");
  EXPECT_EQ(registry.Find("a\nb", "").status().message(), "no block 'a\\nb'");
}

TEST(RegistryTest, LoadingBlocksAreNotReadyAndSayWhenToRetry) {
  BlockRegistry registry;
  registry.Declare("m.x");
  const auto found = registry.Find("m.x", "");
  EXPECT_EQ(ReasonOf(found.status()), Reason::kBlockNotReady);
  EXPECT_EQ(found.status().message(), "block 'm.x' is still loading");
  EXPECT_GT(RetryAfterOf(found.status()), absl::ZeroDuration());
  EXPECT_EQ(registry.Get("m.x")->state, BlockState::kLoading);
  EXPECT_EQ(registry.Get("m.x")->served, nullptr);
}

TEST(RegistryTest, FailedBlocksSayWhyAndGiveNoRetry) {
  BlockRegistry registry;
  registry.Declare("m.x");
  registry.Fail("m.x", "no room");
  const auto found = registry.Find("m.x", "1");
  EXPECT_EQ(ReasonOf(found.status()), Reason::kBlockNotReady);
  EXPECT_EQ(found.status().message(), "block 'm.x' is not ready: no room");
  EXPECT_EQ(RetryAfterOf(found.status()), absl::ZeroDuration());
  EXPECT_EQ(registry.Get("m.x")->state, BlockState::kFailed);
  EXPECT_EQ(registry.Get("m.x")->reason, "no room");
  // A new attempt clears it.
  registry.Declare("m.x");
  EXPECT_EQ(registry.Get("m.x")->state, BlockState::kLoading);
  EXPECT_EQ(registry.Get("m.x")->reason, "");
}

TEST(RegistryTest, PublishedBlocksAnswer) {
  BlockRegistry registry;
  registry.Declare("m.x");
  const auto block = MakeBlock("m.x");
  ASSERT_TRUE(registry.Publish(block).ok());
  EXPECT_EQ(*registry.Find("m.x", ""), block);
  EXPECT_EQ(*registry.Find("m.x", "1"), block);
  const BlockStatus status = *registry.Get("m.x");
  EXPECT_EQ(status.state, BlockState::kReady);
  EXPECT_EQ(status.current, 1);
  EXPECT_EQ(status.served, block);
  EXPECT_THAT(status.revisions, ElementsAre(1));
}

TEST(RegistryTest, OnlyExactRevisionsAreFound) {
  BlockRegistry registry;
  ASSERT_TRUE(registry.Publish(MakeBlock("m.x", 12)).ok());
  EXPECT_TRUE(registry.Find("m.x", "12").ok());
  for (const char* revision :
       {"1", "0", "-12", "+12", " 12", "012", "12 ", "12.0", "x", "99999999999999999999"}) {
    EXPECT_EQ(ReasonFor(registry, "m.x", revision), Reason::kBlockNotFound) << revision;
    EXPECT_EQ(registry.Find("m.x", revision).status().message(),
              "block 'm.x' has no revision '" + std::string(revision) + "'");
  }
}

TEST(RegistryTest, ANewRevisionAnswersAndTheOldStaysToBeAskedFor) {
  BlockRegistry registry;
  const auto first = MakeBlock("m.x", 1);
  const auto second = MakeBlock("m.x", 2);
  ASSERT_TRUE(registry.Publish(first).ok());
  registry.Declare("m.x");  // revision 2 is being loaded: 1 answers on
  EXPECT_EQ(*registry.Find("m.x", ""), first);
  EXPECT_EQ(registry.Get("m.x")->state, BlockState::kReady);
  ASSERT_TRUE(registry.Publish(second).ok());
  EXPECT_EQ(*registry.Find("m.x", ""), second);
  EXPECT_EQ(*registry.Find("m.x", "1"), first);
  EXPECT_THAT(registry.Get("m.x")->revisions, ElementsAre(1, 2));
}

TEST(RegistryTest, AFailedRevisionLeavesTheOldOneAnswering) {
  BlockRegistry registry;
  ASSERT_TRUE(registry.Publish(MakeBlock("m.x", 1)).ok());
  registry.Declare("m.x");
  registry.Fail("m.x", "no room");
  EXPECT_TRUE(registry.Find("m.x", "").ok());
  EXPECT_EQ(registry.Get("m.x")->state, BlockState::kReady);
}

TEST(RegistryTest, ARevisionIsPublishedOnce) {
  BlockRegistry registry;
  const auto block = MakeBlock("m.x", 3);
  ASSERT_TRUE(registry.Publish(block).ok());
  const absl::Status again = registry.Publish(MakeBlock("m.x", 3));
  EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(again.message(), "block 'm.x' has revision 3 already");
  EXPECT_EQ(*registry.Find("m.x", ""), block);
}

TEST(RegistryTest, PublishAllIsAllOrNothing) {
  BlockRegistry registry;
  ASSERT_TRUE(registry.Publish(MakeBlock("m.b", 2)).ok());
  EXPECT_FALSE(registry.PublishAll({MakeBlock("m.a", 2), MakeBlock("m.b", 2)}).ok());
  EXPECT_EQ(ReasonFor(registry, "m.a"), Reason::kBlockNotFound);
  EXPECT_TRUE(registry.PublishAll({MakeBlock("m.a", 3), MakeBlock("m.b", 3)}).ok());
  EXPECT_EQ(registry.Get("m.a")->current, 3);
  EXPECT_EQ(registry.Get("m.b")->current, 3);
}

TEST(RegistryTest, RemovedBlocksAreNotFoundAndLiveWhileTheyAreHeld) {
  BlockRegistry registry;
  ASSERT_TRUE(registry.Publish(MakeBlock("m.x")).ok());
  std::shared_ptr<const ServedBlock> held = *registry.Find("m.x", "");
  const std::weak_ptr<const ServedBlock> watch = held;
  registry.Remove("m.x");
  EXPECT_EQ(ReasonFor(registry, "m.x"), Reason::kBlockNotFound);
  EXPECT_EQ(held->name, "m.x");
  held.reset();
  EXPECT_TRUE(watch.expired());
  registry.Remove("m.x");  // no harm
  registry.Fail("m.x", "late");
  EXPECT_EQ(ReasonFor(registry, "m.x"), Reason::kBlockNotFound);
}

TEST(RegistryTest, ListsByPrefixInOrder) {
  BlockRegistry registry;
  for (const char* name : {"b.x", "a.z", "a.y", "ab.x"}) registry.Declare(name);
  const auto names = [&](std::string_view prefix) {
    std::vector<std::string> out;
    for (const BlockStatus& status : registry.List(prefix)) out.push_back(status.name);
    return out;
  };
  EXPECT_THAT(names(""), ElementsAre("a.y", "a.z", "ab.x", "b.x"));
  EXPECT_THAT(names("a."), ElementsAre("a.y", "a.z"));
  EXPECT_THAT(names("c"), ElementsAre());
}

TEST(RegistryTest, TellsOfEachChangeOnceInOrderAndMayBeReadMeanwhile) {
  BlockRegistry registry;
  std::vector<std::string> heard;
  registry.OnChange([&](const std::string& name) {
    const auto status = registry.Get(name);
    heard.push_back(name + "=" +
                    (status.ok() ? std::to_string(static_cast<int>(status->state)) : "gone"));
  });
  registry.Declare("m.x");                               // 0: loading
  registry.Fail("m.x", "no room");                       // 2: failed
  ASSERT_TRUE(registry.Publish(MakeBlock("m.x")).ok());  // 1: ready
  registry.Declare("m.x");                               // stays ready: no change
  registry.Fail("m.x", "no room");                       // stays ready: no change
  ASSERT_FALSE(registry.Publish(MakeBlock("m.x")).ok());
  registry.Remove("m.x");
  registry.Remove("m.x");
  EXPECT_THAT(heard, ElementsAre("m.x=0", "m.x=2", "m.x=1", "m.x=gone"));
}

TEST(RegistryTest, ReadersNeverSeeHalfOfANewRevision) {
  BlockRegistry registry;
  ASSERT_TRUE(registry.PublishAll({MakeBlock("m.a", 1), MakeBlock("m.b", 1)}).ok());
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (int64_t revision = 2; revision < 500; ++revision) {
      EXPECT_TRUE(
          registry.PublishAll({MakeBlock("m.a", revision), MakeBlock("m.b", revision)}).ok());
    }
    done = true;
  });
  while (!done) {
    const std::vector<BlockStatus> list = registry.List();
    ASSERT_EQ(list.size(), 2u);
    ASSERT_EQ(list[0].current, list[1].current);
  }
  writer.join();
}

}  // namespace
}  // namespace fuseblock
