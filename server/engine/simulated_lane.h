// Lanes that stand in for a GPU's where there is none: for tests.
#pragma once

#include "server/engine/lane.h"

namespace fuseblock {

// Lanes that compute on the CPU, with the CPU's copy of the block. Those of a CUDA device go about
// it as a GPU's do: copy in, compute on memory of their own with the batch padded to its token
// bucket, copy out. That of the CPU is the real one.
LaneFactory SimulatedDevices();

}  // namespace fuseblock
