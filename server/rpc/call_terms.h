// What a call's metadata says: deadline, tenant, priority, whether timings are wanted.
#pragma once

#include <grpcpp/server_context.h>

#include "absl/status/status.h"
#include "server/rpc/block_runner.h"

namespace fuseblock {

// Sets the call's terms, arrived now. BAD_TENSOR naming the key when its value is none it can have;
// arrival and deadline are set even then.
absl::Status ReadTerms(const grpc::CallbackServerContext& context, CallTerms* terms);

// Whether the request carries `fuseblock-timings: 1`.
bool WantsTimings(const grpc::CallbackServerContext& context);

}  // namespace fuseblock
