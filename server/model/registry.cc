// The block registry: a map under a short lock. A change holds a second lock until its callbacks
// have returned, so that observers hear of changes in the order in which they happened.
#include "server/model/registry.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
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

}  // namespace

BlockStatus BlockRegistry::StatusOf(const std::string& name, const Entry& entry) {
  BlockStatus status;
  status.name = name;
  for (const auto& [revision, block] : entry.revisions) status.revisions.push_back(revision);
  status.current = entry.current;
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
      entry.current = block->revision;
      entry.state = BlockState::kReady;
      entry.reason.clear();
    }
  }
  for (const auto& block : blocks) Notify(block->name);
  return absl::OkStatus();
}

void BlockRegistry::Remove(const std::string& name) {
  Entry removed;  // freed after the lock: the last reference may hold gigabytes
  std::lock_guard<std::mutex> change(change_mutex_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = entries_.find(name);
    if (it == entries_.end()) return;
    removed = std::move(it->second);
    entries_.erase(it);
  }
  Notify(name);
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
  if (entry.state != BlockState::kReady) {
    return MakeError(Reason::kBlockNotReady,
                     absl::StrCat("block '", it->first, "' is not ready: ", entry.reason));
  }
  if (revision.empty()) return entry.revisions.at(entry.current);
  int64_t wanted = 0;
  const std::string text(revision);
  const bool number = absl::SimpleAtoi(text, &wanted) && absl::StrCat(wanted) == text;
  const auto found = number ? entry.revisions.find(wanted) : entry.revisions.end();
  if (found == entry.revisions.end()) {
    return MakeError(Reason::kBlockNotFound,
                     absl::StrCat("block '", it->first, "' has no revision ", Quoted(revision)));
  }
  return found->second;
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
