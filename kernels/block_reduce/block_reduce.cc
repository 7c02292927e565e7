// The implementations of block_reduce in the order in which they are tried.
#include "kernels/block_reduce/block_reduce.h"

#include "kernels/base/implementations.h"

namespace fuseblock {
namespace {

constexpr char kName[] = "block_reduce";

constexpr Implementation<RowReduceArgs> kList[] = {
    CudaImplementation<kName, LaunchRowReduce>(),
    HighwayImplementation(RowReduceHighway),
    ReferenceImplementation(RowReduceReference),
};

}  // namespace

absl::Span<const Implementation<RowReduceArgs>> BlockReduceRowsImplementations() { return kList; }

absl::Status BlockReduceRows(const ExecutionContext& context, ReduceOp op, const ConstTensorView& x,
                             const TensorView& y) {
  return RunRowReduce(kName, kList, context, op, x, y);
}

}  // namespace fuseblock
