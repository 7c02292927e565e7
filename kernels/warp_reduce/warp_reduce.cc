// The implementations of warp_reduce in the order in which they are tried.
#include "kernels/warp_reduce/warp_reduce.h"

#include "kernels/base/implementations.h"

namespace fuseblock {
namespace {

constexpr char kName[] = "warp_reduce";

constexpr Implementation<RowReduceArgs> kList[] = {
    CudaImplementation<kName, LaunchRowReduce>(),
    HighwayImplementation(RowReduceHighway),
    ReferenceImplementation(RowReduceReference),
};

}  // namespace

absl::Span<const Implementation<RowReduceArgs>> WarpReduceRowsImplementations() { return kList; }

absl::Status WarpReduceRows(const ExecutionContext& context, ReduceOp op, const ConstTensorView& x,
                            const TensorView& y) {
  return RunRowReduce(kName, kList, context, op, x, y);
}

}  // namespace fuseblock
