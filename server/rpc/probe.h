// What --healthcheck asks: whether a server serves.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace fuseblock {

// OK when the server at that address answers SERVING for itself within the timeout; UNAVAILABLE,
// with what it said, when not.
absl::Status ProbeHealth(const std::string& address, absl::Duration timeout);

}  // namespace fuseblock
