#include "server/observe/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cmath>
#include <ctime>
#include <memory>
#include <mutex>
#include <utility>

namespace fuseblock {
namespace {

constexpr struct {
  LogLevel level;
  std::string_view name;
  spdlog::level::level_enum spdlog;
} kLevels[] = {{LogLevel::kDebug, "debug", spdlog::level::debug},
               {LogLevel::kInfo, "info", spdlog::level::info},
               {LogLevel::kWarning, "warning", spdlog::level::warn},
               {LogLevel::kError, "error", spdlog::level::err}};

const auto& Traits(LogLevel level) { return kLevels[static_cast<int>(level)]; }

// Writes finished lines to a FILE under a lock. spdlog's own sinks want a path or add colours.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(std::FILE* file) : file_(file) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    std::fwrite(message.payload.data(), 1, message.payload.size(), file_);
    std::fputc('\n', file_);
  }
  void flush_() override { std::fflush(file_); }

 private:
  std::FILE* file_;
};

struct Sink {
  explicit Sink(std::FILE* file) : logger("fuseblock", std::make_shared<FileSink>(file)) {
    logger.flush_on(spdlog::level::info);
  }
  spdlog::logger logger;
  LogFormat format = LogFormat::kText;
};

std::unique_ptr<Sink>& CurrentSink() {
  static auto* sink = new std::unique_ptr<Sink>(new Sink(stderr));  // lives until the process ends
  return *sink;
}

void AppendEscaped(std::string_view text, fmt::memory_buffer& out) {
  for (const char c : text) {
    switch (c) {
      case '"':
      case '\\':
        out.push_back('\\');
        out.push_back(c);
        break;
      case '\n':
        out.append(std::string_view("\\n"));
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
          fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned char>(c));
        } else {
          out.push_back(c);
        }
    }
  }
}

// A bare word needs no quotes in text lines; anything else would break key=value apart.
bool IsWord(std::string_view text) {
  if (text.empty()) return false;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) <= 0x20 || c == '"' || c == '=' || c == '\\' || c == 0x7F) {
      return false;
    }
  }
  return true;
}

void AppendQuoted(std::string_view text, fmt::memory_buffer& out) {
  out.push_back('"');
  AppendEscaped(text, out);
  out.push_back('"');
}

void AppendValue(const LogField& field, LogFormat format, fmt::memory_buffer& out) {
  auto back = std::back_inserter(out);
  if (const auto* text = std::get_if<std::string_view>(&field.value)) {
    if (format == LogFormat::kText && IsWord(*text)) {
      out.append(*text);
    } else {
      AppendQuoted(*text, out);
    }
  } else if (const auto* number = std::get_if<double>(&field.value)) {
    if (format == LogFormat::kJson && !std::isfinite(*number)) {
      fmt::format_to(back, "\"{}\"", *number);  // JSON has no such number
    } else {
      fmt::format_to(back, "{}", *number);
    }
  } else if (const auto* integer = std::get_if<int64_t>(&field.value)) {
    fmt::format_to(back, "{}", *integer);
  } else {
    fmt::format_to(back, "{}", std::get<bool>(field.value));
  }
}

std::string Now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::time_t seconds = ms / 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900,
                     utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, ms % 1000);
}

}  // namespace

std::optional<LogLevel> LogLevelFromName(std::string_view name) {
  for (const auto& entry : kLevels) {
    if (entry.name == name) return entry.level;
  }
  return std::nullopt;
}

std::optional<LogFormat> LogFormatFromName(std::string_view name) {
  if (name == "text") return LogFormat::kText;
  if (name == "json") return LogFormat::kJson;
  return std::nullopt;
}

void SetUpLog(LogLevel level, LogFormat format, std::FILE* file) {
  auto sink = std::make_unique<Sink>(file == nullptr ? stderr : file);
  sink->logger.set_level(Traits(level).spdlog);
  sink->format = format;
  CurrentSink() = std::move(sink);
}

bool LogEnabled(LogLevel level) { return CurrentSink()->logger.should_log(Traits(level).spdlog); }

void Log(LogLevel level, std::string_view event, std::string_view message,
         std::initializer_list<LogField> fields) {
  Sink& sink = *CurrentSink();
  if (!sink.logger.should_log(Traits(level).spdlog)) return;
  const std::string line = FormatLogLine(sink.format, Now(), level, event, message, fields);
  sink.logger.log(Traits(level).spdlog, spdlog::string_view_t(line.data(), line.size()));
}

std::string FormatLogLine(LogFormat format, std::string_view time, LogLevel level,
                          std::string_view event, std::string_view message,
                          std::initializer_list<LogField> fields) {
  fmt::memory_buffer out;
  auto back = std::back_inserter(out);
  if (format == LogFormat::kText) {
    fmt::format_to(back, "{} {} {}: ", time, Traits(level).name, event);
    AppendEscaped(message, out);
    for (const LogField& field : fields) {
      fmt::format_to(back, " {}=", field.key);
      AppendValue(field, format, out);
    }
  } else {
    fmt::format_to(back, R"({{"time":"{}","level":"{}","event":"{}","message":)", time,
                   Traits(level).name, event);
    AppendQuoted(message, out);
    for (const LogField& field : fields) {
      out.push_back(',');
      AppendQuoted(field.key, out);
      out.push_back(':');
      AppendValue(field, format, out);
    }
    out.push_back('}');
  }
  return fmt::to_string(out);
}

}  // namespace fuseblock
