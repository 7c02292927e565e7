// The checks of SwiGLU's gate and the order in which its implementations are tried.
#include "kernels/swiglu/swiglu.h"

#include "kernels/base/gate_check.h"
#include "kernels/base/implementations.h"
#include "kernels/base/status.h"
#include "kernels/swiglu/swiglu_cuda.h"

namespace fuseblock {

// Defined in swiglu_ref.cc and swiglu_cpu.cc.
absl::Status SwiGluReference(const ExecutionContext& context, const SwiGluArgs& args);
absl::Status SwiGluHighway(const ExecutionContext& context, const SwiGluArgs& args);

namespace {

constexpr char kName[] = "swiglu";

int Launch(FuseblockSwiGlu* launch, const SwiGluArgs& args, void* stream) {
  const FuseblockCudaRows gate = CudaRows(args.gate, args.in_dtype);
  const FuseblockCudaRows up = CudaRows(args.up, args.in_dtype);
  const FuseblockCudaRows y = CudaRows(args.y, args.y_dtype);
  return launch(&gate, &up, args.rounding == Rounding::kHf, &y, stream);
}

constexpr Implementation<SwiGluArgs> kList[] = {
    CudaImplementation<kName, Launch>(),
    HighwayImplementation(SwiGluHighway),
    ReferenceImplementation(SwiGluReference),
};

}  // namespace

absl::Span<const Implementation<SwiGluArgs>> SwiGluImplementations() { return kList; }

absl::StatusOr<SwiGluArgs> CheckSwiGlu(const ConstTensorView& gate, const ConstTensorView& up,
                                       Rounding rounding, const TensorView& y) {
  return CheckGate<SwiGluArgs>(gate, up, rounding, y);
}

absl::Status SwiGlu(const ExecutionContext& context, const ConstTensorView& gate,
                    const ConstTensorView& up, Rounding rounding, const TensorView& y) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const SwiGluArgs args, CheckSwiGlu(gate, up, rounding, y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("gate", gate, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("up", up, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("y", y, context.device));
  if (y.elements() == 0) return absl::OkStatus();
  return RunFirst(kName, SwiGluImplementations(), context, args);
}

absl::Status SwiGluPacked(const ExecutionContext& context, const ConstTensorView& gate_up,
                          Rounding rounding, const TensorView& y) {
  if (gate_up.rank == 0 || gate_up.cols() % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gate_up: expected [.., 2 d], an even number of columns, got ", Describe(gate_up)));
  }
  ConstTensorView gate = gate_up;
  gate.shape[gate.rank - 1] /= 2;
  ConstTensorView up = gate;
  if (up.data != nullptr) {
    up.data = static_cast<const std::byte*>(up.data) + gate.cols() * SizeOf(up.dtype);
  }
  return SwiGlu(context, gate, up, rounding, y);
}

}  // namespace fuseblock
