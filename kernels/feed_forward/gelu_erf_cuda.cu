// The erf form of GELU between the products.
#include "kernels/feed_forward/gate_up_launch.cuh"

namespace fuseblock {

const GateUpLaunch kGeluErfLaunch = kGateUpLaunchOf<DenseGeluForm<GeluForm::kErf>>;

}  // namespace fuseblock
