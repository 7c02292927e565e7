// BlockInfo, the wire's description of a block.
#pragma once

#include <cstdint>

#include "fuseblock/v1/block_service.pb.h"
#include "server/model/registry.h"

namespace fuseblock {

// `served` is the revision to describe, or null while there is none.
v1::BlockInfo InfoOf(const BlockStatus& status, const ServedBlock* served,
                     int64_t request_tokens_max);

}  // namespace fuseblock
