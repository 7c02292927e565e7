// SwiGLU between the products.
#include "kernels/feed_forward/gate_up_launch.cuh"

namespace fuseblock {

const GateUpLaunch kSwiGluLaunch = kGateUpLaunchOf<SwiGluForm>;

}  // namespace fuseblock
