// GeGLU with the tanh form of GELU between the products.
#include "kernels/feed_forward/gate_up_launch.cuh"

namespace fuseblock {

const GateUpLaunch kGeGluTanhLaunch = kGateUpLaunchOf<GeGluForm<GeluForm::kTanh>>;

}  // namespace fuseblock
