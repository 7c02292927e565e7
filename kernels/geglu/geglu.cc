// The checks of GeGLU's gate and the order in which its implementations are tried.
#include "kernels/geglu/geglu.h"

#include "kernels/base/gate_check.h"
#include "kernels/base/implementations.h"
#include "kernels/base/status.h"
#include "kernels/geglu/geglu_cuda.h"

namespace fuseblock {

// Defined in geglu_ref.cc and geglu_cpu.cc.
absl::Status GeGluReference(const ExecutionContext& context, const GeGluArgs& args);
absl::Status GeGluHighway(const ExecutionContext& context, const GeGluArgs& args);

namespace {

constexpr char kName[] = "geglu";

int Launch(FuseblockGeGlu* launch, const GeGluArgs& args, void* stream) {
  const FuseblockCudaRows gate = CudaRows(args.gate, args.in_dtype);
  const FuseblockCudaRows up = CudaRows(args.up, args.in_dtype);
  const FuseblockCudaRows y = CudaRows(args.y, args.y_dtype);
  return launch(&gate, &up, args.form == GeluForm::kErf, args.rounding == Rounding::kHf, &y,
                stream);
}

constexpr Implementation<GeGluArgs> kList[] = {
    CudaImplementation<kName, Launch>(),
    HighwayImplementation(GeGluHighway),
    ReferenceImplementation(GeGluReference),
};

}  // namespace

absl::Span<const Implementation<GeGluArgs>> GeGluImplementations() { return kList; }

absl::StatusOr<GeGluArgs> CheckGeGlu(const ConstTensorView& gate, const ConstTensorView& up,
                                     GeluForm form, Rounding rounding, const TensorView& y) {
  FUSEBLOCK_ASSIGN_OR_RETURN(auto args, CheckGate<GeGluArgs>(gate, up, rounding, y));
  args.form = form;
  return args;
}

absl::Status GeGlu(const ExecutionContext& context, const ConstTensorView& gate,
                   const ConstTensorView& up, GeluForm form, Rounding rounding,
                   const TensorView& y) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const GeGluArgs args, CheckGeGlu(gate, up, form, rounding, y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("gate", gate, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("up", up, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("y", y, context.device));
  if (y.elements() == 0) return absl::OkStatus();
  return RunFirst(kName, GeGluImplementations(), context, args);
}

}  // namespace fuseblock
