// GeGLU with the erf form of GELU between the products.
#include "kernels/feed_forward/gate_up_launch.cuh"

namespace fuseblock {

const GateUpLaunch kGeGluErfLaunch = kGateUpLaunchOf<GeGluForm<GeluForm::kErf>>;

}  // namespace fuseblock
