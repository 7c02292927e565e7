// The checks of the clamped SwiGLU and the order in which its implementations are tried.
#include "kernels/swiglu_clamped/swiglu_clamped.h"

#include "kernels/base/implementations.h"
#include "kernels/base/status.h"
#include "kernels/swiglu_clamped/swiglu_clamped_cuda.h"

namespace fuseblock {

// Defined in swiglu_clamped_ref.cc and swiglu_clamped_cpu.cc.
absl::Status SwiGluClampedReference(const ExecutionContext& context, const SwiGluClampedArgs& args);
absl::Status SwiGluClampedHighway(const ExecutionContext& context, const SwiGluClampedArgs& args);

namespace {

constexpr char kName[] = "swiglu_clamped";

int Launch(FuseblockSwiGluClamped* launch, const SwiGluClampedArgs& args, void* stream) {
  const FuseblockCudaRows gate_up = CudaRows(args.gate_up, args.in_dtype);
  const FuseblockCudaRows y = CudaRows(args.y, args.y_dtype);
  return launch(&gate_up, &y, stream);
}

constexpr Implementation<SwiGluClampedArgs> kList[] = {
    CudaImplementation<kName, Launch>(),
    HighwayImplementation(SwiGluClampedHighway),
    ReferenceImplementation(SwiGluClampedReference),
};

}  // namespace

absl::Span<const Implementation<SwiGluClampedArgs>> SwiGluClampedImplementations() { return kList; }

absl::StatusOr<SwiGluClampedArgs> CheckSwiGluClamped(const ConstTensorView& gate_up,
                                                     const TensorView& y) {
  FUSEBLOCK_RETURN_IF_ERROR(CheckFloat("y", y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDTypeOrF32("gate_up", gate_up, y.dtype));
  if (gate_up.rank == 0 || gate_up.cols() % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gate_up: expected [.., 2 d], an even number of columns, got ", Describe(gate_up)));
  }
  ConstTensorView expected = gate_up;
  expected.dtype = y.dtype;
  expected.shape[expected.rank - 1] /= 2;
  if (y.dims() != expected.dims()) {
    return absl::InvalidArgumentError(
        absl::StrCat("y: expected ", Describe(expected), ", got ", Describe(y)));
  }
  SwiGluClampedArgs args;
  FUSEBLOCK_ASSIGN_OR_RETURN(args.gate_up, AsRows("gate_up", gate_up));
  FUSEBLOCK_ASSIGN_OR_RETURN(args.y, AsRows("y", y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckApart("y", y, "gate_up", gate_up));
  args.in_dtype = gate_up.dtype;
  args.y_dtype = y.dtype;
  return args;
}

absl::Status SwiGluClamped(const ExecutionContext& context, const ConstTensorView& gate_up,
                           const TensorView& y) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const SwiGluClampedArgs args, CheckSwiGluClamped(gate_up, y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("gate_up", gate_up, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("y", y, context.device));
  if (y.elements() == 0) return absl::OkStatus();
  return RunFirst(kName, SwiGluClampedImplementations(), context, args);
}

}  // namespace fuseblock
