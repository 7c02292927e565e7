#include "server/observe/http.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace fuseblock {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Sends the text to 127.0.0.1:port and returns all that comes back.
std::string Exchange(const std::string& address, const std::string& text) {
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (::connect(socket, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0 &&
      ::send(socket, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size())) {
    char buffer[4096];
    for (ssize_t n; (n = ::recv(socket, buffer, sizeof(buffer), 0)) > 0;) {
      answer.append(buffer, static_cast<size_t>(n));
    }
  }
  ::close(socket);
  return answer;
}

std::string Get(const HttpServer& server, const std::string& path) {
  return Exchange(server.address(), "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
}

class HttpTest : public ::testing::Test {
 protected:
  HttpTest() {
    auto server = HttpServer::Start(
        "127.0.0.1:0", metrics_,
        [this] { return ready_ ? absl::OkStatus() : absl::UnavailableError("still loading"); },
        [] { return "<!doctype html>"; });
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  Metrics metrics_;
  std::atomic<bool> ready_{true};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpTest, Metrics) {
  metrics_.SetInflight(7);
  const std::string answer = Get(*server_, "/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(answer, HasSubstr("\nfuseblock_inflight_requests 7\n"));
}

TEST_F(HttpTest, ReadinessFollowsAndSaysWhy) {
  EXPECT_THAT(Get(*server_, "/readyz"), StartsWith("HTTP/1.1 200 "));
  ready_ = false;
  EXPECT_THAT(Get(*server_, "/readyz"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(Get(*server_, "/readyz"), HasSubstr("still loading"));
  EXPECT_THAT(Get(*server_, "/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpTest, StatusPageRunsNothing) {
  const std::string answer = Get(*server_, "/statusz");
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/html; charset=utf-8\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Security-Policy: default-src 'none'; style-src"));
  EXPECT_THAT(answer, ::testing::EndsWith("\r\n\r\n<!doctype html>"));
}

TEST_F(HttpTest, NothingElseIsThere) {
  EXPECT_THAT(Get(*server_, "/"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Get(*server_, "/metrics/../etc/passwd"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Exchange(server_->address(), "POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n"),
              StartsWith("HTTP/1.1 405 "));
  const std::string head = Exchange(server_->address(), "HEAD /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(head, ::testing::EndsWith("\r\n\r\n"));
}

TEST_F(HttpTest, RubbishDoesNotHurt) {
  Exchange(server_->address(), "\r\n\r\n");
  Exchange(server_->address(), std::string("\0\1\2 HTTP\r\n\r\n", 12));
  Exchange(server_->address(), "GET /" + std::string(100000, 'a') + " HTTP/1.1\r\n\r\n");
  EXPECT_THAT(Get(*server_, "/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpTest, AnswersManyAtATime) {
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i)
        right += Get(*server_, "/healthz").find("ok\n") != std::string::npos;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 160);
}

TEST_F(HttpTest, OtherWaysToNameTheHost) {
  for (const std::string host : {"localhost", "0.0.0.0"}) {
    const auto server = HttpServer::Start(host + ":0", metrics_, {}, {});
    ASSERT_TRUE(server.ok()) << server.status();
    EXPECT_THAT((*server)->address(), ::testing::MatchesRegex(host + ":[1-9][0-9]*"));
    EXPECT_THAT(Get(**server, "/readyz"), StartsWith("HTTP/1.1 200 "));
  }
}

TEST_F(HttpTest, APortThatIsTakenAndAddressesThatAreNone) {
  const auto second = HttpServer::Start(server_->address(), metrics_, {}, {});
  EXPECT_TRUE(absl::IsUnavailable(second.status())) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(server_->address()));
  for (const char* address :
       {"", "8002", ":8002", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", "unix:/tmp/x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(HttpServer::Start(address, metrics_, {}, {}).status()))
        << address;
  }
}

}  // namespace
}  // namespace fuseblock
