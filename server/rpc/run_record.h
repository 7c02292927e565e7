// The run record: what a measurement or a report of a fault must say of the process that it came
// from.
#pragma once

#include <vector>

#include "fuseblock/v1/admin_service.pb.h"
#include "kernels/base/tensor_view.h"
#include "server/config.h"
#include "server/observe/metrics.h"

namespace fuseblock {

// Of this process, started now. devices: the engine's.
v1::RunRecord MakeRunRecord(const BuildInfo& build, const Config& config,
                            const std::vector<Device>& devices);

}  // namespace fuseblock
