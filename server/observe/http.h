// The plain HTTP side of the server: /metrics for Prometheus, /healthz (the process lives) and
// /readyz (it takes requests) for orchestrators, /statusz for people.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/observe/metrics.h"

namespace fuseblock {

class HttpServer {
 public:
  // address: "HOST:PORT" or "[IPV6]:PORT"; port 0 picks one. `ready` is asked on every /readyz: OK
  // answers 200, an error 503 with its message. `statusz` gives the status page as HTML. metrics
  // must outlive the server. INVALID_ARGUMENT for another form of address, UNAVAILABLE when it
  // can't be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address,
                                                           const Metrics& metrics,
                                                           std::function<absl::Status()> ready,
                                                           std::function<std::string()> statusz);
  // Stops listening and waits for the answers under way.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // "127.0.0.1:8002", with the port that was picked.
  const std::string& address() const;

  struct Impl;

 private:
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace fuseblock
