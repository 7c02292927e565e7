#include "server/observe/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace fuseblock {
namespace {

std::string Line(LogFormat format, std::string_view message,
                 std::initializer_list<LogField> fields) {
  return FormatLogLine(format, "2026-11-29T18:10:02.125Z", LogLevel::kInfo, "listening", message,
                       fields);
}

TEST(Log, Text) {
  EXPECT_EQ(Line(LogFormat::kText, "listening on 127.0.0.1:8001",
                 {{"service", "grpc"}, {"tokens", 3}, {"share", 0.5}, {"tls", false}}),
            "2026-11-29T18:10:02.125Z info listening: listening on 127.0.0.1:8001 service=grpc "
            "tokens=3 share=0.5 tls=false");
}

TEST(Log, Json) {
  EXPECT_EQ(Line(LogFormat::kJson, "listening on 127.0.0.1:8001",
                 {{"service", "grpc"}, {"tokens", 3}, {"share", 0.5}, {"tls", true}}),
            R"({"time":"2026-11-29T18:10:02.125Z","level":"info","event":"listening",)"
            R"("message":"listening on 127.0.0.1:8001","service":"grpc","tokens":3,"share":0.5,)"
            R"("tls":true})");
}

// What a client sends must not be able to forge a line or a field.
TEST(Log, EscapesWhatWouldBreakALine) {
  const std::string evil = "a\"b\\c\nd\x01=e f";
  EXPECT_EQ(Line(LogFormat::kJson, evil, {{"block", evil}}),
            R"({"time":"2026-11-29T18:10:02.125Z","level":"info","event":"listening",)"
            R"("message":"a\"b\\c\nd\u0001=e f","block":"a\"b\\c\nd\u0001=e f"})");
  EXPECT_EQ(Line(LogFormat::kText, "m", {{"block", evil}, {"empty", ""}}),
            R"(2026-11-29T18:10:02.125Z info listening: m block="a\"b\\c\nd\u0001=e f" empty="")");
}

TEST(Log, NumbersThatJsonLacks) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_THAT(Line(LogFormat::kJson, "m", {{"x", infinity}}),
              ::testing::HasSubstr(R"("x":"inf"})"));
}

TEST(Log, Names) {
  EXPECT_EQ(LogLevelFromName("warning"), LogLevel::kWarning);
  EXPECT_EQ(LogLevelFromName("WARNING"), std::nullopt);
  EXPECT_EQ(LogFormatFromName("json"), LogFormat::kJson);
  EXPECT_EQ(LogFormatFromName(""), std::nullopt);
}

TEST(Log, WritesWholeLinesFromManyThreadsAboveItsLevel) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  SetUpLog(LogLevel::kInfo, LogFormat::kJson, file);
  EXPECT_FALSE(LogEnabled(LogLevel::kDebug));
  EXPECT_TRUE(LogEnabled(LogLevel::kError));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 100; ++i) {
        Log(LogLevel::kInfo, "event", "hello", {{"thread", t}});
        Log(LogLevel::kDebug, "event", "unseen");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::rewind(file);
  int lines = 0;
  char line[512];
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    ++lines;
    EXPECT_THAT(line, ::testing::MatchesRegex("\\{\"time\":.*\"thread\":[0-3]\\}\n"));
  }
  EXPECT_EQ(lines, 400);
  SetUpLog(LogLevel::kInfo, LogFormat::kText);
  std::fclose(file);
}

}  // namespace
}  // namespace fuseblock
