#include "server/observe/http.h"

#include <civetweb.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace fuseblock {

struct HttpServer::Impl {
  const Metrics* metrics;
  std::function<absl::Status()> ready;
  std::function<std::string()> statusz;
  std::string address;
  std::string host;  // without brackets
  int port = 0;
  std::string last_message;  // civetweb's own, until it has started
  mg_context* context = nullptr;
};

namespace {

struct Page {
  int code;
  const char* type;
  std::string body;
};

Page Metricsz(const HttpServer::Impl& server) {
  return {200, "text/plain; version=0.0.4; charset=utf-8", server.metrics->Expose()};
}

Page Healthz(const HttpServer::Impl&) { return {200, "text/plain; charset=utf-8", "ok\n"}; }

Page Readyz(const HttpServer::Impl& server) {
  const absl::Status status = server.ready ? server.ready() : absl::OkStatus();
  if (status.ok()) return {200, "text/plain; charset=utf-8", "ready\n"};
  return {503, "text/plain; charset=utf-8", absl::StrCat(status.message(), "\n")};
}

Page Statusz(const HttpServer::Impl& server) {
  return {200, "text/html; charset=utf-8", server.statusz ? server.statusz() : ""};
}

constexpr struct {
  const char* path;
  Page (*page)(const HttpServer::Impl&);
} kPages[] = {
    {"/metrics", Metricsz}, {"/healthz", Healthz}, {"/readyz", Readyz}, {"/statusz", Statusz}};

Page Find(const HttpServer::Impl& server, const mg_request_info& request) {
  const std::string_view method = request.request_method;
  if (method != "GET" && method != "HEAD") {
    return {405, "text/plain; charset=utf-8", "only GET and HEAD are answered here\n"};
  }
  const std::string_view path = request.local_uri == nullptr ? "" : request.local_uri;
  for (const auto& entry : kPages) {
    if (path == entry.path) return entry.page(server);
  }
  return {404, "text/plain; charset=utf-8", "here are /metrics, /healthz, /readyz and /statusz\n"};
}

const char* Phrase(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    default:
      return "Service Unavailable";
  }
}

// Answers every request here, so that civetweb's own file serving is never reached.
int OnRequest(mg_connection* connection) {
  const mg_request_info* request = mg_get_request_info(connection);
  const auto* server = static_cast<const HttpServer::Impl*>(request->user_data);
  const Page page = Find(*server, *request);
  mg_printf(connection,
            "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
            "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
            "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n"
            "%sConnection: close\r\n\r\n",
            page.code, Phrase(page.code), page.type, page.body.size(),
            page.code == 405 ? "Allow: GET, HEAD\r\n" : "");
  if (std::string_view(request->request_method) != "HEAD") {
    mg_write(connection, page.body.data(), page.body.size());
  }
  return page.code;
}

int OnMessage(const mg_connection* connection, const char* message) {
  const mg_context* context = mg_get_context(connection);
  auto* server =
      context == nullptr ? nullptr : static_cast<HttpServer::Impl*>(mg_get_user_data(context));
  // Only while it starts: afterwards every connection that breaks off would write here.
  if (server != nullptr && server->context == nullptr) server->last_message = message;
  return 1;  // handled: nothing goes to civetweb's own log
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const std::string& address, const Metrics& metrics, std::function<absl::Status()> ready,
    std::function<std::string()> statusz) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("expected HOST:PORT, got \"", address, "\""));
  }
  auto impl = std::make_unique<Impl>();
  impl->metrics = &metrics;
  impl->ready = std::move(ready);
  impl->statusz = std::move(statusz);

  mg_callbacks callbacks{};
  callbacks.begin_request = OnRequest;
  callbacks.log_message = OnMessage;
  // Two threads: a scrape and a probe at a time. Slow readers are cut off.
  const char* options[] = {"listening_ports",
                           address.c_str(),
                           "num_threads",
                           "2",
                           "request_timeout_ms",
                           "5000",
                           "enable_keep_alive",
                           "no",
                           nullptr};
  mg_init_library(0);
  mg_context* context = mg_start(&callbacks, impl.get(), options);
  if (context == nullptr) {
    mg_exit_library();
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ": ", impl->last_message));
  }
  impl->context = context;
  mg_server_port picked{};
  mg_get_server_ports(context, 1, &picked);
  impl->address = absl::StrCat(address.substr(0, colon), ":", picked.port);
  impl->host = address.substr(0, colon);
  if (impl->host.front() == '[') impl->host = impl->host.substr(1, impl->host.size() - 2);
  impl->port = picked.port;
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() {
  // civetweb looks at its stop flag when a connection comes, or every two seconds: so connections
  // come.
  std::atomic<bool> stopped{false};
  std::thread stopper([&] {
    mg_stop(impl_->context);
    stopped = true;
  });
  while (!stopped) {
    char error[64];
    mg_connection* knock =
        mg_connect_client(impl_->host.c_str(), impl_->port, 0, error, sizeof(error));
    if (knock != nullptr) mg_close_connection(knock);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  stopper.join();
  mg_exit_library();
}

const std::string& HttpServer::address() const { return impl_->address; }

}  // namespace fuseblock
