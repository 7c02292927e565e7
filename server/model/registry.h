// Which blocks there are: names, revisions, states. Readers never wait for a load.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
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
  BlockState state = BlockState::kLoading;
  std::string reason;                         // why it is not ready
  std::shared_ptr<const ServedBlock> served;  // the current revision; null unless ready
};

// Thread-safe.
class BlockRegistry {
 public:
  // A block of that name is being loaded. It stays ready if an older revision answers.
  void Declare(const std::string& name);
  // The load failed; a block without another revision becomes FAILED with that reason.
  void Fail(const std::string& name, const std::string& reason);
  // Makes the revision answer. ALREADY_EXISTS when the name has that revision.
  absl::Status Publish(std::shared_ptr<const ServedBlock> block);
  // The same for a whole model at once: no reader sees some blocks of the new revision and some of
  // the old. All or none.
  absl::Status PublishAll(absl::Span<const std::shared_ptr<const ServedBlock>> blocks);
  // Takes the whole block away: new requests are refused as BLOCK_NOT_FOUND, requests that hold the
  // block finish, its memory is freed with the last of them.
  void Remove(const std::string& name);

  // The revision, or the current one for an empty string. Errors: BLOCK_NOT_FOUND for an unknown
  // name or revision (naming it), BLOCK_NOT_READY while loading (with a retry delay) or failed.
  absl::StatusOr<std::shared_ptr<const ServedBlock>> Find(std::string_view name,
                                                          std::string_view revision) const;
  absl::StatusOr<BlockStatus> Get(std::string_view name) const;
  std::vector<BlockStatus> List(std::string_view prefix = "") const;  // by name

  // Called after every change of a block's state with its name, outside the readers' lock, in the
  // order of the changes. The callback may read the registry, and must not change it. Set once,
  // before the first Declare.
  void OnChange(std::function<void(const std::string& name)> callback);

 private:
  struct Entry {
    BlockState state = BlockState::kLoading;
    std::string reason;
    std::map<int64_t, std::shared_ptr<const ServedBlock>> revisions;
    int64_t current = 0;
  };
  static BlockStatus StatusOf(const std::string& name, const Entry& entry);
  void Notify(const std::string& name);

  // std::mutex: ThreadSanitizer cannot see into the distribution's absl::Mutex.
  std::mutex change_mutex_;   // held through a change and its callbacks; taken before mutex_
  mutable std::mutex mutex_;  // guards entries_, for as long as a look-up takes
  std::map<std::string, Entry, std::less<>> entries_;
  std::function<void(const std::string&)> on_change_;
};

}  // namespace fuseblock
