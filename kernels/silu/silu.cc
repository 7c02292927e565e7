// The checks of SiLU and the order in which its implementations are tried.
#include "kernels/silu/silu.h"

#include "kernels/base/implementations.h"
#include "kernels/base/status.h"
#include "kernels/silu/silu_cuda.h"

namespace fuseblock {

// Defined in silu_ref.cc and silu_cpu.cc.
absl::Status SiluReference(const ExecutionContext& context, const SiluArgs& args);
absl::Status SiluHighway(const ExecutionContext& context, const SiluArgs& args);

namespace {

constexpr char kName[] = "silu";

int Launch(FuseblockSilu* launch, const SiluArgs& args, void* stream) {
  const FuseblockCudaRows x = CudaRows(args.x, args.x_dtype);
  const FuseblockCudaRows y = CudaRows(args.y, args.y_dtype);
  return launch(&x, &y, stream);
}

constexpr Implementation<SiluArgs> kList[] = {
    CudaImplementation<kName, Launch>(),
    HighwayImplementation(SiluHighway),
    ReferenceImplementation(SiluReference),
};

}  // namespace

absl::Span<const Implementation<SiluArgs>> SiluImplementations() { return kList; }

absl::StatusOr<SiluArgs> CheckSilu(const ConstTensorView& x, const TensorView& y) {
  FUSEBLOCK_RETURN_IF_ERROR(CheckFloat("y", y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDTypeOrF32("x", x, y.dtype));
  FUSEBLOCK_RETURN_IF_ERROR(CheckSameShape("x", x, "y", y));
  SiluArgs args;
  FUSEBLOCK_ASSIGN_OR_RETURN(args.x, AsRows("x", x));
  FUSEBLOCK_ASSIGN_OR_RETURN(args.y, AsRows("y", y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckNoPartialOverlap("y", y, "x", x));
  args.x_dtype = x.dtype;
  args.y_dtype = y.dtype;
  return args;
}

absl::Status Silu(const ExecutionContext& context, const ConstTensorView& x, const TensorView& y) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const SiluArgs args, CheckSilu(x, y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("x", x, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("y", y, context.device));
  if (y.elements() == 0) return absl::OkStatus();
  return RunFirst(kName, SiluImplementations(), context, args);
}

}  // namespace fuseblock
