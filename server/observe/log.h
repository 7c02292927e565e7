// Structured logs: an event's id (snake_case, stable: what searches and alerts match on), a
// sentence for people, and fields. Never tensor contents, tokens or keys.
//
//   Log(LogLevel::kInfo, "listening", "listening on 127.0.0.1:8001", {{"service", "grpc"}});
//
// text: 2026-11-29T18:10:02.125Z info listening: listening on 127.0.0.1:8001 service=grpc
// json: {"time":"2026-11-29T18:10:02.125Z","level":"info","event":"listening",
//        "message":"listening on 127.0.0.1:8001","service":"grpc"}
#pragma once

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

namespace fuseblock {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

std::optional<LogLevel> LogLevelFromName(std::string_view name);    // debug, info, warning, error
std::optional<LogFormat> LogFormatFromName(std::string_view name);  // text, json

struct LogField {
  std::string_view key;
  std::variant<int64_t, double, bool, std::string_view> value;

  template <typename T>
  LogField(std::string_view key_in, const T& v) : key(key_in), value(Convert(v)) {}

 private:
  template <typename T>
  static std::variant<int64_t, double, bool, std::string_view> Convert(const T& v) {
    if constexpr (std::is_same_v<T, bool>) {
      return v;
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<int64_t>(v);
    } else if constexpr (std::is_floating_point_v<T>) {
      return static_cast<double>(v);
    } else {
      return std::string_view(v);
    }
  }
};

// Sets level, format and where lines go (standard error if unset). Call it before other threads
// log; until then text lines of info and above go to standard error.
void SetUpLog(LogLevel level, LogFormat format, std::FILE* file = nullptr);

// Whether a line of that level would be written: ask before computing costly fields.
bool LogEnabled(LogLevel level);

// Thread-safe; one whole line per call, flushed at once. Control characters in strings are escaped.
void Log(LogLevel level, std::string_view event, std::string_view message,
         std::initializer_list<LogField> fields = {});

// One line as Log would write it, without its newline. `time` is in ISO 8601.
std::string FormatLogLine(LogFormat format, std::string_view time, LogLevel level,
                          std::string_view event, std::string_view message,
                          std::initializer_list<LogField> fields);

}  // namespace fuseblock
