// Which blocks there are: names, revisions, states. Readers never wait for a load.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/model/served_block.h"

namespace fuseblock {

enum class BlockState { kLoading, kReady, kFailed, kUnloading };

// One block as ListBlocks and health see it.
struct BlockStatus {
  std::string name;
  std::vector<int64_t> revisions;  // that can be asked for, ascending
  int64_t current = 0;             // answers when none is asked for; 0: none
  bool pinned = false;             // current was set, and newer ones do not take its place
  BlockState state = BlockState::kLoading;
  std::string reason;                         // why it is not ready
  std::shared_ptr<const ServedBlock> served;  // the current revision; null unless ready
};

// A revision as clients write it: a positive integer in decimal, without sign, space or leading
// zero.
std::optional<int64_t> ParseRevision(std::string_view text);

// Thread-safe. Where a function takes a `name`, it is a block's, or a model's for all of its blocks
// ("smollm2" for those that begin with "smollm2.").
class BlockRegistry {
 public:
  using Blocks = std::vector<std::shared_ptr<const ServedBlock>>;

  // A block of that name is being loaded. It stays ready if an older revision answers.
  void Declare(const std::string& name);
  // The load failed; a block without another revision becomes FAILED with that reason.
  void Fail(const std::string& name, const std::string& reason);
  // The revision can be asked for; it answers when it is the newest and no other was set to answer.
  // ALREADY_EXISTS when the name has that revision.
  absl::Status Publish(std::shared_ptr<const ServedBlock> block);
  // The same for a whole model at once: no reader sees some blocks of the new revision and some of
  // the old. All or none.
  absl::Status PublishAll(absl::Span<const std::shared_ptr<const ServedBlock>> blocks);
  // Which revision answers when none is asked for; 0: the newest, now and whenever a newer one
  // comes. All blocks of that name, or none; gives how many. Errors: BLOCK_NOT_FOUND, naming the
  // block, when there is none of that name or one has no such revision.
  absl::StatusOr<int> SetCurrent(std::string_view name, int64_t revision);
  // Whether every block of that name has the revision (0: any): else BLOCK_NOT_FOUND, naming what
  // is missing.
  absl::Status CheckHas(std::string_view name, int64_t revision) const;
  // Takes the revision (0: all of them) away, from every block of that name that has it, and gives
  // what was taken: requests that hold it finish, and its memory is freed with the last reference.
  // The newest of a block's other revisions answers; a block that has no other is UNLOADING until
  // Forget. Errors: BLOCK_NOT_FOUND; CONFLICT when a block was set to answer with that
  // revision and has others.
  absl::StatusOr<Blocks> Unload(std::string_view name, int64_t revision);
  // Drops what is UNLOADING or FAILED under that name: from then on it is unknown.
  void Forget(std::string_view name);

  // The revision, or the current one for an empty string. Errors: BLOCK_NOT_FOUND for an unknown
  // name or revision (naming it), BLOCK_NOT_READY while loading (with a retry delay), failed or
  // unloading.
  absl::StatusOr<std::shared_ptr<const ServedBlock>> Find(std::string_view name,
                                                          std::string_view revision) const;
  absl::StatusOr<BlockStatus> Get(std::string_view name) const;
  // Of all the model's blocks; 0 when there is none.
  int64_t NewestRevision(std::string_view model) const;
  std::vector<BlockStatus> List(std::string_view prefix = "") const;  // by name

  // Called after every change of a block's state or revisions with its name, outside the readers'
  // lock, in the order of the changes. The callback may read the registry, and must not change it.
  // Set once, before the first Declare.
  void OnChange(std::function<void(const std::string& name)> callback);

 private:
  struct Entry {
    BlockState state = BlockState::kLoading;
    std::string reason;
    std::map<int64_t, std::shared_ptr<const ServedBlock>> revisions;
    int64_t current = 0;
    bool pinned = false;

    void AnswerWithNewest() {
      current = revisions.empty() ? 0 : revisions.rbegin()->first;
      pinned = false;
    }
  };
  using Entries = std::map<std::string, Entry, std::less<>>;

  static BlockStatus StatusOf(const std::string& name, const Entry& entry);
  // What the name stands for. BLOCK_NOT_FOUND when that is nothing.
  absl::StatusOr<std::vector<Entries::iterator>> NamedLocked(std::string_view name) const;
  static absl::Status CheckHave(const std::vector<Entries::iterator>& named, int64_t revision);
  void Notify(const std::string& name);

  // std::mutex: ThreadSanitizer cannot see into the distribution's absl::Mutex.
  std::mutex change_mutex_;   // held through a change and its callbacks; taken before mutex_
  mutable std::mutex mutex_;  // guards entries_, for as long as a look-up takes
  mutable Entries entries_;
  std::function<void(const std::string&)> on_change_;
};

}  // namespace fuseblock
