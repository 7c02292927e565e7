// libfuseblock_rows.so: the row kernels behind a few C functions, so that a benchmark in Python can
// run any of them by name, on the CPU or inside its own CUDA graphs, beside its own peers. What
// runs is the public C++ call with its checks: what users call is what is timed.
#include <array>
#include <cstdio>
#include <cstring>
#include <string>

#include "absl/types/span.h"
#include "kernels/add_residual/add_residual.h"
#include "kernels/add_rms_norm/add_rms_norm.h"
#include "kernels/causal_softmax/causal_softmax.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gelu_erf/gelu_erf.h"
#include "kernels/gelu_tanh/gelu_tanh.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/silu/silu.h"
#include "kernels/swiglu/swiglu.h"
#include "server/engine/cpu_team.h"

namespace fuseblock {
namespace {

using Context = ExecutionContext;
using Inputs = absl::Span<const ConstTensorView>;
using Outputs = absl::Span<const TensorView>;

constexpr float kEps = 1e-5f;
constexpr RmsNormParams kRmsNorm{kEps, 0.0f, RmsNormForm::kOnce};

// A kernel with the parameters that the benchmarks give it; operands in the order of its header.
struct RowKernel {
  const char* name;  // the folder under kernels/
  size_t inputs, outputs;
  absl::Status (*run)(const Context& context, Inputs in, Outputs out);
};

constexpr RowKernel kRowKernels[] = {
    {"add_residual", 2, 1,
     [](const Context& c, Inputs in, Outputs out) { return AddResidual(c, in[0], in[1], out[0]); }},
    {"silu", 1, 1, [](const Context& c, Inputs in, Outputs out) { return Silu(c, in[0], out[0]); }},
    {"gelu_erf", 1, 1,
     [](const Context& c, Inputs in, Outputs out) { return GeluErf(c, in[0], out[0]); }},
    {"gelu_tanh", 1, 1,
     [](const Context& c, Inputs in, Outputs out) { return GeluTanh(c, in[0], out[0]); }},
    {"swiglu", 2, 1,
     [](const Context& c, Inputs in, Outputs out) {
       return SwiGlu(c, in[0], in[1], Rounding::kFused, out[0]);
     }},
    {"rms_norm", 2, 1,
     [](const Context& c, Inputs in, Outputs out) {
       return RmsNorm(c, in[0], in[1], kRmsNorm, out[0]);
     }},
    {"add_rms_norm", 3, 2,
     [](const Context& c, Inputs in, Outputs out) {
       return AddRmsNorm(c, in[0], in[1], in[2], kRmsNorm, Rounding::kFused, out[0], out[1]);
     }},
    {"causal_softmax", 1, 1,
     [](const Context& c, Inputs in, Outputs out) {
       return CausalSoftmax(c, in[0], 1.0f, out[0]);
     }},
    {"embedding", 2, 1,
     [](const Context& c, Inputs in, Outputs out) {
       return Embedding(c, in[0], in[1], 1.0f, out[0]);
     }},
};

const RowKernel* Find(const char* name) {
  for (const RowKernel& kernel : kRowKernels) {
    if (std::strcmp(kernel.name, name) == 0) return &kernel;
  }
  return nullptr;
}

}  // namespace
}  // namespace fuseblock

using fuseblock::CpuTeam;
using fuseblock::DType;
using fuseblock::TensorView;

#define FUSEBLOCK_EXPORT extern "C" __attribute__((visibility("default")))

// A dense row-major tensor on the run's device. dtype: DType's number.
struct FuseblockRowsTensor {
  void* data;
  int32_t dtype;
  int32_t rank;
  int64_t shape[fuseblock::kMaxRank];
};

// Threads for runs on the CPU.
FUSEBLOCK_EXPORT void* fuseblock_rows_team_create(int threads) { return new CpuTeam(threads); }
FUSEBLOCK_EXPORT void fuseblock_rows_team_destroy(void* team) {
  delete static_cast<CpuTeam*>(team);
}

// The name of the kernel with that number, null after the last.
FUSEBLOCK_EXPORT const char* fuseblock_rows_kernel(size_t number) {
  return number < std::size(fuseblock::kRowKernels) ? fuseblock::kRowKernels[number].name : nullptr;
}

// cuda_device: -1 for the CPU, with `team` or (null) on this thread; else enqueued on `stream`. 0
// when it ran or was enqueued; else the error is printed.
FUSEBLOCK_EXPORT int fuseblock_rows_run(const char* kernel, int cuda_device, void* team,
                                        void* stream, const FuseblockRowsTensor* inputs,
                                        size_t input_count, const FuseblockRowsTensor* outputs,
                                        size_t output_count) {
  const fuseblock::RowKernel* found = fuseblock::Find(kernel);
  if (found == nullptr || found->inputs != input_count || found->outputs != output_count) {
    std::fprintf(stderr, "%s: no such kernel of %zu inputs and %zu outputs\n", kernel, input_count,
                 output_count);
    return 1;
  }
  fuseblock::ExecutionContext context;
  if (cuda_device >= 0) context.device = {fuseblock::DeviceType::kCuda, cuda_device};
  context.stream = stream;
  if (team != nullptr) context.parallel_for = static_cast<CpuTeam*>(team)->parallel_for();
  const auto view = [&](const FuseblockRowsTensor& tensor) {
    return TensorView(tensor.data, static_cast<DType>(tensor.dtype),
                      absl::MakeConstSpan(tensor.shape, static_cast<size_t>(tensor.rank)),
                      context.device);
  };
  std::array<fuseblock::ConstTensorView, 4> in;
  std::array<TensorView, 4> out;
  for (size_t i = 0; i < input_count; ++i) in[i] = view(inputs[i]);
  for (size_t i = 0; i < output_count; ++i) out[i] = view(outputs[i]);
  const absl::Status status = found->run(context, absl::MakeConstSpan(in).first(input_count),
                                         absl::MakeConstSpan(out).first(output_count));
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", kernel, std::string(status.message()).c_str());
  return 1;
}
