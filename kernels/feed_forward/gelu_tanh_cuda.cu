// The tanh form of GELU between the products.
#include "kernels/feed_forward/gate_up_launch.cuh"

namespace fuseblock {

const GateUpLaunch kGeluTanhLaunch = kGateUpLaunchOf<DenseGeluForm<GeluForm::kTanh>>;

}  // namespace fuseblock
