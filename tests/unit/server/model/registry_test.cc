// The block registry's states, who is told of them, and that readers never see half a model.
#include "server/model/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <optional>
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

TEST(RegistryTest, ParsesRevisions) {
  EXPECT_EQ(ParseRevision("1"), 1);
  EXPECT_EQ(ParseRevision("9223372036854775807"), INT64_MAX);
  for (const char* text :
       {"", "0", "-1", "+1", " 1", "1 ", "01", "1.0", "x", "9223372036854775808"})
    EXPECT_EQ(ParseRevision(text), std::nullopt) << text;
}

TEST(RegistryTest, TheNewestRevisionAnswersWhateverTheOrderOfTheLoads) {
  BlockRegistry registry;
  ASSERT_TRUE(registry.Publish(MakeBlock("m.x", 2)).ok());
  ASSERT_TRUE(registry.Publish(MakeBlock("m.x", 1)).ok());
  EXPECT_EQ(registry.Get("m.x")->current, 2);
}

TEST(RegistryTest, ARevisionThatIsSetAnswersUntilTheNewestIsSet) {
  BlockRegistry registry;
  ASSERT_TRUE(registry.PublishAll({MakeBlock("m.a", 1), MakeBlock("m.b", 1)}).ok());
  ASSERT_TRUE(registry.PublishAll({MakeBlock("m.a", 2), MakeBlock("m.b", 2)}).ok());
  ASSERT_TRUE(registry.Publish(MakeBlock("m.c", 2)).ok());
  // All blocks of the model, or none.
  const absl::Status status = registry.SetCurrent("m", 1).status();
  EXPECT_EQ(ReasonOf(status), Reason::kBlockNotFound);
  EXPECT_EQ(status.message(), "block 'm.c' has no revision '1'");
  EXPECT_EQ(registry.Get("m.a")->current, 2);
  ASSERT_TRUE(registry.SetCurrent("m.a", 1).ok());
  EXPECT_EQ((*registry.Find("m.a", ""))->revision, 1);
  EXPECT_EQ((*registry.Find("m.a", "2"))->revision, 2);
  EXPECT_TRUE(registry.Get("m.a")->pinned);
  EXPECT_EQ(registry.Get("m.b")->current, 2);
  ASSERT_TRUE(registry.PublishAll({MakeBlock("m.a", 3), MakeBlock("m.b", 3)}).ok());
  EXPECT_EQ(registry.Get("m.a")->current, 1);
  EXPECT_EQ(registry.Get("m.b")->current, 3);
  EXPECT_EQ(*registry.SetCurrent("m", 0), 3);
  EXPECT_EQ(registry.Get("m.a")->current, 3);
  EXPECT_FALSE(registry.Get("m.a")->pinned);
  EXPECT_EQ(ReasonOf(registry.SetCurrent("n", 1).status()), Reason::kBlockNotFound);
  EXPECT_EQ(ReasonOf(registry.SetCurrent("m.", 1).status()), Reason::kBlockNotFound);
}

TEST(RegistryTest, KnowsTheNewestRevisionOfAModel) {
  BlockRegistry registry;
  EXPECT_EQ(registry.NewestRevision("m"), 0);
  registry.Declare("m.y");
  ASSERT_TRUE(registry.Publish(MakeBlock("m.x", 4)).ok());
  ASSERT_TRUE(registry.Publish(MakeBlock("m.x", 2)).ok());
  ASSERT_TRUE(registry.Publish(MakeBlock("mm.x", 9)).ok());
  EXPECT_EQ(registry.NewestRevision("m"), 4);
}

TEST(RegistryTest, UnloadingARevisionLeavesTheOthers) {
  BlockRegistry registry;
  for (const int64_t revision : {1, 2, 3}) {
    ASSERT_TRUE(registry.PublishAll({MakeBlock("m.a", revision), MakeBlock("m.b", revision)}).ok());
  }
  ASSERT_TRUE(registry.Publish(MakeBlock("m.c", 1)).ok());
  EXPECT_EQ(registry.Unload("m", 3)->size(), 2u);
  EXPECT_EQ(registry.Get("m.a")->current, 2);
  EXPECT_EQ(ReasonFor(registry, "m.a", "3"), Reason::kBlockNotFound);
  EXPECT_EQ(registry.Get("m.c")->current, 1);
  ASSERT_TRUE(registry.SetCurrent("m.b", 1).ok());
  const auto refused = registry.Unload("m", 1);
  EXPECT_EQ(ReasonOf(refused.status()), Reason::kConflict);
  EXPECT_EQ(refused.status().message(),
            "block 'm.b' is set to answer with revision 1: set another one first");
  EXPECT_THAT(registry.Get("m.a")->revisions, ElementsAre(1, 2)) << "all or none";
  EXPECT_EQ(registry.Unload("m.b", 2)->size(), 1u);
  EXPECT_EQ(registry.Get("m.b")->current, 1);
  // The last one may go, set or not.
  EXPECT_EQ(registry.Unload("m.b", 1)->size(), 1u);
  EXPECT_EQ(registry.Unload("m", 9).status().message(), "block 'm.a' has no revision '9'");
  EXPECT_EQ(ReasonOf(registry.Unload("n", 0).status()), Reason::kBlockNotFound);
}

TEST(RegistryTest, UnloadedBlocksAreRefusedAndLiveWhileTheyAreHeld) {
  BlockRegistry registry;
  ASSERT_TRUE(registry.Publish(MakeBlock("m.x")).ok());
  std::shared_ptr<const ServedBlock> held = *registry.Find("m.x", "");
  const std::weak_ptr<const ServedBlock> watch = held;
  auto taken = registry.Unload("m", 0);
  ASSERT_EQ(taken->size(), 1u);
  EXPECT_EQ(taken->front(), held);
  EXPECT_EQ(registry.Get("m.x")->state, BlockState::kUnloading);
  EXPECT_EQ(ReasonFor(registry, "m.x"), Reason::kBlockNotReady);
  EXPECT_EQ(registry.Find("m.x", "").status().message(), "block 'm.x' is being unloaded");
  registry.Forget("m");
  EXPECT_EQ(ReasonFor(registry, "m.x"), Reason::kBlockNotFound);
  taken->clear();
  EXPECT_EQ(held->name, "m.x");
  held.reset();
  EXPECT_TRUE(watch.expired());
  registry.Forget("m.x");  // no harm
  registry.Fail("m.x", "late");
  EXPECT_EQ(ReasonFor(registry, "m.x"), Reason::kBlockNotFound);
}

TEST(RegistryTest, ForgettingSparesWhatLoadsAndWhatAnswers) {
  BlockRegistry registry;
  for (const char* name : {"m.failed", "m.again", "m.loading"}) registry.Declare(name);
  registry.Fail("m.failed", "no room");
  ASSERT_TRUE(registry.Publish(MakeBlock("m.again")).ok());
  ASSERT_TRUE(registry.Publish(MakeBlock("m.ready")).ok());
  EXPECT_EQ(registry.Unload("m.again", 0)->size(), 1u);
  registry.Declare("m.again");  // loaded anew while the old one is still held
  registry.Forget("m");
  EXPECT_EQ(ReasonFor(registry, "m.failed"), Reason::kBlockNotFound);
  EXPECT_EQ(registry.Get("m.again")->state, BlockState::kLoading);
  EXPECT_EQ(registry.Get("m.loading")->state, BlockState::kLoading);
  EXPECT_TRUE(registry.Find("m.ready", "").ok());
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
  ASSERT_TRUE(registry.Publish(MakeBlock("m.x", 2)).ok());  // 1, by another revision
  ASSERT_TRUE(registry.SetCurrent("m.x", 1).ok());
  ASSERT_TRUE(registry.Unload("m.x", 2).ok());
  ASSERT_TRUE(registry.Unload("m.x", 0).ok());  // 3: unloading
  registry.Forget("m.x");
  registry.Forget("m.x");
  EXPECT_THAT(heard, ElementsAre("m.x=0", "m.x=2", "m.x=1", "m.x=1", "m.x=1", "m.x=1", "m.x=3",
                                 "m.x=gone"));
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
