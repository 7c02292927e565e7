#include "server/model/json.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace fuseblock {
namespace {

constexpr int kDepthMax = 64;

// Watches the parser build the document. After the first complaint it has everything discarded.
class Watch {
 public:
  bool operator()(int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    if (!complaint_.empty()) return false;
    using Event = nlohmann::json::parse_event_t;
    if (depth > kDepthMax) {
      complaint_ = absl::StrCat("nested deeper than ", kDepthMax);
    } else if (event == Event::object_start) {
      keys_.emplace_back();
    } else if (event == Event::object_end) {
      keys_.pop_back();
    } else if (event == Event::key) {
      const std::string& key = parsed.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) {
        complaint_ = absl::StrCat("key '", Printable(key), "' appears twice");
      }
    }
    return complaint_.empty();
  }

  const std::string& complaint() const { return complaint_; }

 private:
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
  std::string complaint_;
};

}  // namespace

std::string Printable(std::string_view name) {
  constexpr size_t kLongest = 200;
  std::string out;
  for (char c : name.substr(0, kLongest)) {
    if (absl::ascii_isprint(static_cast<unsigned char>(c))) {
      out += c;
    } else {
      absl::StrAppend(&out, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    }
  }
  return name.size() <= kLongest ? out : out + "...";
}

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text) {
  Watch watch;
  try {
    nlohmann::json document = nlohmann::json::parse(
        text.begin(), text.end(),
        [&watch](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
          return watch(depth, event, parsed);
        });
    if (!watch.complaint().empty()) return absl::InvalidArgumentError(watch.complaint());
    return document;
  } catch (const nlohmann::json::parse_error& error) {
    if (!watch.complaint().empty()) return absl::InvalidArgumentError(watch.complaint());
    return absl::InvalidArgumentError(absl::StrCat("not JSON at byte ", error.byte));
  }
}

}  // namespace fuseblock
