// Measured numbers in memory and in a file; see the header.
#include "kernels/base/tuning.h"

#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace fuseblock {
namespace {

constexpr absl::string_view kHead = "fuseblock tuning of build ";

using Numbers = std::map<std::string, int64_t, std::less<>>;

struct Known {
  std::mutex mutex;
  Numbers numbers;
  std::string path, build;
};

Known& TheKnown() {
  static auto* known = new Known;
  return *known;
}

// Beside the file, then in its place, so that a reader never finds half of it.
void Write(const Known& known) {
  const std::string next = known.path + ".next";
  {
    std::ofstream file(next, std::ios::trunc);
    file << kHead << known.build << "\n";
    for (const auto& [key, value] : known.numbers) file << value << " " << key << "\n";
    if (!file.flush()) return;
  }
  std::rename(next.c_str(), known.path.c_str());
}

absl::StatusOr<Numbers> Parse(const std::string& path, const std::string& text,
                              std::string_view build) {
  Numbers numbers;
  if (text.empty()) return numbers;
  int at = 0;
  bool other_build = false;
  for (absl::string_view line : absl::StrSplit(absl::StripSuffix(text, "\n"), '\n')) {
    ++at;
    if (at == 1) {
      if (!absl::ConsumePrefix(&line, kHead)) {
        return absl::InvalidArgumentError(absl::StrCat(path, ":1: expected \"", kHead,
                                                       "...\", got \"", line.substr(0, 80), "\""));
      }
      other_build = std::string_view(line.data(), line.size()) != build;
      continue;
    }
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    int64_t value = 0;
    if (!absl::SimpleAtoi(parts.first, &value) || parts.second.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ":", at, ": expected \"NUMBER KEY\", got \"", line.substr(0, 80), "\""));
    }
    numbers.emplace(parts.second, value);
  }
  return other_build ? Numbers() : numbers;
}

}  // namespace

absl::StatusOr<int64_t> Tuned(std::string_view key,
                              absl::FunctionRef<absl::StatusOr<int64_t>()> measure) {
  Known& known = TheKnown();
  const std::lock_guard<std::mutex> lock(known.mutex);
  if (const auto found = known.numbers.find(key); found != known.numbers.end()) {
    return found->second;
  }
  absl::StatusOr<int64_t> measured = measure();
  if (measured.ok()) {
    known.numbers.emplace(key, *measured);
    if (!known.path.empty()) Write(known);
  }
  return measured;
}

absl::Status UseTuningFile(const std::string& path, std::string_view build) {
  Numbers numbers;
  std::ifstream file;
  if (!path.empty()) file.open(path);
  if (file.is_open()) {
    std::stringstream text;
    text << file.rdbuf();
    absl::StatusOr<Numbers> parsed = Parse(path, text.str(), build);
    if (!parsed.ok()) return parsed.status();
    numbers = *std::move(parsed);
  }
  Known& known = TheKnown();
  const std::lock_guard<std::mutex> lock(known.mutex);
  known.path = path;
  known.build = std::string(build);
  known.numbers = std::move(numbers);
  return absl::OkStatus();
}

}  // namespace fuseblock
