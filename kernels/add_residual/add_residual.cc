// The checks of the residual addition and the order in which its implementations are tried.
#include "kernels/add_residual/add_residual.h"

#include "kernels/add_residual/add_residual_cuda.h"
#include "kernels/base/implementations.h"
#include "kernels/base/status.h"

namespace fuseblock {

// Defined in add_residual_ref.cc and add_residual_cpu.cc.
absl::Status AddResidualReference(const ExecutionContext& context, const AddResidualArgs& args);
absl::Status AddResidualHighway(const ExecutionContext& context, const AddResidualArgs& args);

namespace {

constexpr char kName[] = "add_residual";

int Launch(FuseblockAddResidual* launch, const AddResidualArgs& args, void* stream) {
  const FuseblockCudaRows x = CudaRows(args.x, args.x_dtype);
  const FuseblockCudaRows r = CudaRows(args.r, args.r_dtype);
  const FuseblockCudaRows z = CudaRows(args.z, args.z_dtype);
  return launch(&x, &r, &z, stream);
}

constexpr Implementation<AddResidualArgs> kList[] = {
    CudaImplementation<kName, Launch>(),
    HighwayImplementation(AddResidualHighway),
    ReferenceImplementation(AddResidualReference),
};

}  // namespace

absl::Span<const Implementation<AddResidualArgs>> AddResidualImplementations() { return kList; }

absl::StatusOr<AddResidualArgs> CheckAddResidual(const ConstTensorView& x, const ConstTensorView& r,
                                                 const TensorView& z) {
  FUSEBLOCK_RETURN_IF_ERROR(CheckFloat("z", z));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDTypeOrF32("x", x, z.dtype));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDTypeOrF32("r", r, z.dtype));
  FUSEBLOCK_RETURN_IF_ERROR(CheckSameShape("x", x, "r", r));
  FUSEBLOCK_RETURN_IF_ERROR(CheckSameShape("x", x, "z", z));
  AddResidualArgs args;
  FUSEBLOCK_ASSIGN_OR_RETURN(args.x, AsRows("x", x));
  FUSEBLOCK_ASSIGN_OR_RETURN(args.r, AsRows("r", r));
  FUSEBLOCK_ASSIGN_OR_RETURN(args.z, AsRows("z", z));
  FUSEBLOCK_RETURN_IF_ERROR(CheckNoPartialOverlap("z", z, "x", x));
  FUSEBLOCK_RETURN_IF_ERROR(CheckNoPartialOverlap("z", z, "r", r));
  args.x_dtype = x.dtype;
  args.r_dtype = r.dtype;
  args.z_dtype = z.dtype;
  return args;
}

absl::Status AddResidual(const ExecutionContext& context, const ConstTensorView& x,
                         const ConstTensorView& r, const TensorView& z) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const AddResidualArgs args, CheckAddResidual(x, r, z));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("x", x, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("r", r, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("z", z, context.device));
  if (z.elements() == 0) return absl::OkStatus();
  return RunFirst(kName, AddResidualImplementations(), context, args);
}

}  // namespace fuseblock
