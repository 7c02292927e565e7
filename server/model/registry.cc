// The block registry: a map under a short lock. A change holds a second lock until its callbacks
// have returned, so that observers hear of changes in the order in which they happened.
#include "server/model/registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status.h"
#include "server/reason.h"

namespace fuseblock {
namespace {

// When a client that met a loading block should ask again.
constexpr absl::Duration kLoadingRetry = absl::Seconds(1);

// A name as it came from a client, short enough for a status message.
std::string Quoted(std::string_view name) {
  constexpr size_t kLongest = 128;
  std::string text(name.substr(0, kLongest));
  if (name.size() > kLongest) text += "...";
  return absl::StrCat("'", absl::Utf8SafeCHexEscape(text), "'");
}

absl::Status NotFound(std::string_view name) {
  return MakeError(Reason::kBlockNotFound, absl::StrCat("no block ", Quoted(name)));
}

absl::Status NoRevision(const std::string& name, std::string_view revision) {
  return MakeError(Reason::kBlockNotFound,
                   absl::StrCat("block '", name, "' has no revision ", Quoted(revision)));
}

}  // namespace

std::optional<int64_t> ParseRevision(std::string_view text) {
  int64_t revision = 0;
  const absl::string_view view(text.data(), text.size());
  if (!absl::SimpleAtoi(view, &revision) || revision < 1 || absl::StrCat(revision) != view) {
    return std::nullopt;
  }
  return revision;
}

BlockStatus BlockRegistry::StatusOf(const std::string& name, const Entry& entry) {
  BlockStatus status;
  status.name = name;
  for (const auto& [revision, block] : entry.revisions) status.revisions.push_back(revision);
  status.current = entry.current;
  status.pinned = entry.pinned;
  status.state = entry.state;
  status.reason = entry.reason;
  if (entry.state == BlockState::kReady) status.served = entry.revisions.at(entry.current);
  return status;
}

void BlockRegistry::Notify(const std::string& name) {
  if (on_change_) on_change_(name);
}

void BlockRegistry::OnChange(std::function<void(const std::string& name)> callback) {
  std::lock_guard<std::mutex> change(change_mutex_);
  on_change_ = std::move(callback);
}

void BlockRegistry::Declare(const std::string& name) {
  std::lock_guard<std::mutex> change(change_mutex_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = entries_[name];
    if (!entry.revisions.empty()) return;  // it answers on
    entry.state = BlockState::kLoading;
    entry.reason.clear();
  }
  Notify(name);
}

void BlockRegistry::Fail(const std::string& name, const std::string& reason) {
  std::lock_guard<std::mutex> change(change_mutex_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = entries_.find(name);
    if (it == entries_.end() || !it->second.revisions.empty()) return;
    it->second.state = BlockState::kFailed;
    it->second.reason = reason;
  }
  Notify(name);
}

absl::Status BlockRegistry::Publish(std::shared_ptr<const ServedBlock> block) {
  return PublishAll({std::move(block)});
}

absl::Status BlockRegistry::PublishAll(
    absl::Span<const std::shared_ptr<const ServedBlock>> blocks) {
  std::lock_guard<std::mutex> change(change_mutex_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& block : blocks) {
      const auto it = entries_.find(block->name);
      if (it != entries_.end() && it->second.revisions.count(block->revision) != 0) {
        return absl::AlreadyExistsError(
            absl::StrCat("block '", block->name, "' has revision ", block->revision, " already"));
      }
    }
    for (const auto& block : blocks) {
      Entry& entry = entries_[block->name];
      entry.revisions[block->revision] = block;
      if (!entry.pinned) entry.AnswerWithNewest();
      entry.state = BlockState::kReady;
      entry.reason.clear();
    }
  }
  for (const auto& block : blocks) Notify(block->name);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<BlockRegistry::Entries::iterator>> BlockRegistry::NamedLocked(
    std::string_view name) const {
  std::vector<Entries::iterator> named;
  if (const auto it = entries_.find(name); it != entries_.end()) named.push_back(it);
  const std::string prefix = std::string(name) + ".";
  for (auto it = entries_.lower_bound(prefix);
       it != entries_.end() && it->first.compare(0, prefix.size(), prefix) == 0; ++it) {
    named.push_back(it);
  }
  if (!named.empty()) return named;
  return MakeError(Reason::kBlockNotFound, absl::StrCat("no model or block ", Quoted(name)));
}

absl::Status BlockRegistry::CheckHave(const std::vector<Entries::iterator>& named,
                                      int64_t revision) {
  for (const auto& it : named) {
    if (revision > 0 && it->second.revisions.count(revision) == 0) {
      return NoRevision(it->first, absl::StrCat(revision));
    }
  }
  return absl::OkStatus();
}

absl::Status BlockRegistry::CheckHas(std::string_view name, int64_t revision) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto named = NamedLocked(name);
  return named.ok() ? CheckHave(*named, revision) : named.status();
}

absl::StatusOr<int> BlockRegistry::SetCurrent(std::string_view name, int64_t revision) {
  std::vector<std::string> changed;
  std::lock_guard<std::mutex> change(change_mutex_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto named = NamedLocked(name);
    if (!named.ok()) return named.status();
    FUSEBLOCK_RETURN_IF_ERROR(CheckHave(*named, revision));
    for (const auto& it : *named) {
      Entry& entry = it->second;
      entry.AnswerWithNewest();
      changed.push_back(it->first);
      if (revision == 0) continue;
      entry.current = revision;
      entry.pinned = true;
    }
  }
  for (const std::string& block : changed) Notify(block);
  return static_cast<int>(changed.size());
}

absl::StatusOr<BlockRegistry::Blocks> BlockRegistry::Unload(std::string_view name,
                                                            int64_t revision) {
  Blocks taken;
  std::vector<std::string> changed;
  std::lock_guard<std::mutex> change(change_mutex_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto named = NamedLocked(name);
    if (!named.ok()) return named.status();
    if (revision > 0) {
      const auto lacks = [&](const auto& it) { return it->second.revisions.count(revision) == 0; };
      const std::string first = named->front()->first;
      named->erase(std::remove_if(named->begin(), named->end(), lacks), named->end());
      if (named->empty()) return NoRevision(first, absl::StrCat(revision));
    }
    for (const auto& it : *named) {
      const Entry& entry = it->second;
      if (entry.pinned && entry.current == revision && entry.revisions.size() > 1) {
        return MakeError(Reason::kConflict,
                         absl::StrCat("block '", it->first, "' is set to answer with revision ",
                                      revision, ": set another one first"));
      }
    }
    for (const auto& it : *named) {
      Entry& entry = it->second;
      for (auto at = entry.revisions.begin(); at != entry.revisions.end();) {
        if (revision > 0 && at->first != revision) {
          ++at;
          continue;
        }
        taken.push_back(std::move(at->second));
        at = entry.revisions.erase(at);
      }
      if (!entry.pinned || entry.revisions.empty()) entry.AnswerWithNewest();
      // What loads goes on loading, what failed stays so.
      if (entry.revisions.empty() && entry.state == BlockState::kReady) {
        entry.state = BlockState::kUnloading;
      }
      changed.push_back(it->first);
    }
  }
  for (const std::string& block : changed) Notify(block);
  return taken;
}

void BlockRegistry::Forget(std::string_view name) {
  std::vector<std::string> gone;
  std::lock_guard<std::mutex> change(change_mutex_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto named = NamedLocked(name);
    if (!named.ok()) return;
    for (const auto& it : *named) {
      const BlockState state = it->second.state;
      if (state != BlockState::kUnloading && state != BlockState::kFailed) continue;
      gone.push_back(it->first);
      entries_.erase(it);
    }
  }
  for (const std::string& block : gone) Notify(block);
}

absl::StatusOr<std::shared_ptr<const ServedBlock>> BlockRegistry::Find(
    std::string_view name, std::string_view revision) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = entries_.find(name);
  if (it == entries_.end()) return NotFound(name);
  const Entry& entry = it->second;
  if (entry.state == BlockState::kLoading) {
    return MakeError(Reason::kBlockNotReady,
                     absl::StrCat("block '", it->first, "' is still loading"), kLoadingRetry);
  }
  if (entry.state == BlockState::kUnloading) {
    return MakeError(Reason::kBlockNotReady,
                     absl::StrCat("block '", it->first, "' is being unloaded"));
  }
  if (entry.state != BlockState::kReady) {
    return MakeError(Reason::kBlockNotReady,
                     absl::StrCat("block '", it->first, "' is not ready: ", entry.reason));
  }
  if (revision.empty()) return entry.revisions.at(entry.current);
  const std::optional<int64_t> wanted = ParseRevision(revision);
  const auto found = wanted ? entry.revisions.find(*wanted) : entry.revisions.end();
  if (found == entry.revisions.end()) return NoRevision(it->first, revision);
  return found->second;
}

int64_t BlockRegistry::NewestRevision(std::string_view model) const {
  int64_t newest = 0;
  for (const BlockStatus& block : List(std::string(model) + ".")) {
    if (!block.revisions.empty()) newest = std::max(newest, block.revisions.back());
  }
  return newest;
}

absl::StatusOr<BlockStatus> BlockRegistry::Get(std::string_view name) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = entries_.find(name);
  if (it == entries_.end()) return NotFound(name);
  return StatusOf(it->first, it->second);
}

std::vector<BlockStatus> BlockRegistry::List(std::string_view prefix) const {
  std::vector<BlockStatus> out;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = entries_.lower_bound(prefix);
       it != entries_.end() && it->first.compare(0, prefix.size(), prefix) == 0; ++it) {
    out.push_back(StatusOf(it->first, it->second));
  }
  return out;
}

}  // namespace fuseblock
