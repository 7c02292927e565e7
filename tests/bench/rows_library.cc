// libfuseblock_rows.so: the row kernels behind a few C functions, so that a benchmark in Python can
// run any of them by name, on the CPU or inside its own CUDA graphs, beside its own peers. What
// runs is the public C++ call with its checks: what users call is what is timed.
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "kernels/add_residual/add_residual.h"
#include "kernels/add_rms_norm/add_rms_norm.h"
#include "kernels/base/cuda.h"
#include "kernels/base/status.h"
#include "kernels/causal_softmax/causal_softmax.h"
#include "kernels/embedding/embedding.h"
#include "kernels/geglu/geglu.h"
#include "kernels/gelu_erf/gelu_erf.h"
#include "kernels/gelu_tanh/gelu_tanh.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/linear/linear.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/silu/silu.h"
#include "kernels/softmax/softmax.h"
#include "kernels/softmax_masked/softmax_masked.h"
#include "kernels/swiglu/swiglu.h"
#include "kernels/swiglu_clamped/swiglu_clamped.h"
#include "server/engine/cpu_team.h"

namespace fuseblock {
namespace {

using Context = ExecutionContext;
using Inputs = absl::Span<const ConstTensorView>;
using Outputs = absl::Span<const TensorView>;

constexpr float kEps = 1e-5f;
constexpr RmsNormParams kRmsNorm{kEps, 0.0f, RmsNormForm::kOnce};

// Angles for heads of that size, made at the first call.
absl::StatusOr<const RopeTable*> AnglesFor(Device device, int64_t head_dim) {
  static std::mutex mutex;
  static auto* tables = new std::map<std::tuple<DeviceType, int, int64_t>, RopeTable>;
  const std::lock_guard lock(mutex);
  const auto key = std::make_tuple(device.type, device.index, head_dim);
  if (const auto found = tables->find(key); found != tables->end()) return &found->second;
  FUSEBLOCK_ASSIGN_OR_RETURN(RopeTable table,
                             RopeTable::Make(device, {head_dim, 131072, 10000, {}}));
  return &tables->emplace(key, std::move(table)).first->second;
}

absl::Status RunRope(const Context& context, Inputs in, Outputs out) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const RopeTable* table, AnglesFor(context.device, out[0].cols()));
  return Rope(context, *table, RopePairs::kHalves, in[0], {in[1], out[0]}, std::nullopt);
}

// y = x * W^T with a weight in host memory, which is prepared anew: for errors, not for times.
absl::Status RunLinear(const Context& context, Inputs in, Outputs out) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const LinearWeight weight,
                             LinearWeight::Prepare(context.device, in[1], std::nullopt));
  FUSEBLOCK_RETURN_IF_ERROR(Linear(context, in[0], weight, out[0]));
  if (context.device.type == DeviceType::kCpu) return absl::OkStatus();
  return CudaStatus("linear",
                    CudaRuntime()->stream_synchronize(context.device.index, context.stream));
}

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
    {"swiglu_clamped", 1, 1,
     [](const Context& c, Inputs in, Outputs out) { return SwiGluClamped(c, in[0], out[0]); }},
    {"geglu", 2, 1,
     [](const Context& c, Inputs in, Outputs out) {
       return GeGlu(c, in[0], in[1], GeluForm::kTanh, Rounding::kFused, out[0]);
     }},
    {"rms_norm", 2, 1,
     [](const Context& c, Inputs in, Outputs out) {
       return RmsNorm(c, in[0], in[1], kRmsNorm, out[0]);
     }},
    {"add_rms_norm", 3, 2,
     [](const Context& c, Inputs in, Outputs out) {
       return AddRmsNorm(c, in[0], in[1], in[2], kRmsNorm, Rounding::kFused, out[0], out[1]);
     }},
    {"layer_norm", 3, 1,
     [](const Context& c, Inputs in, Outputs out) {
       return LayerNorm(c, in[0], in[1], in[2], kEps, out[0]);
     }},
    {"softmax", 1, 1,
     [](const Context& c, Inputs in, Outputs out) { return Softmax(c, in[0], out[0]); }},
    {"softmax_masked", 2, 1,
     [](const Context& c, Inputs in, Outputs out) {
       return SoftmaxMasked(c, in[0], in[1], out[0]);
     }},
    {"rope", 2, 1, RunRope},
    {"causal_softmax", 1, 1,
     [](const Context& c, Inputs in, Outputs out) {
       return CausalSoftmax(c, in[0], 1.0f, out[0]);
     }},
    {"linear", 2, 1, RunLinear},
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

struct BoundCall {
  const RowKernel* kernel = nullptr;
  ExecutionContext context;
  std::vector<ConstTensorView> inputs;
  std::vector<TensorView> outputs;
};

}  // namespace
}  // namespace fuseblock

using fuseblock::CpuTeam;
using fuseblock::DType;
using fuseblock::TensorView;

#define FUSEBLOCK_EXPORT extern "C" __attribute__((visibility("default")))

// A dense row-major tensor. dtype: DType's number; cuda_device: -1 for host memory.
struct FuseblockRowsTensor {
  void* data;
  int32_t dtype;
  int32_t rank;
  int32_t cuda_device;
  int64_t shape[fuseblock::kMaxRank];
};

static fuseblock::Device DeviceOf(int cuda_device) {
  if (cuda_device < 0) return {};
  return {fuseblock::DeviceType::kCuda, cuda_device};
}

// Threads for runs on the CPU.
FUSEBLOCK_EXPORT void* fuseblock_rows_team_create(int threads) { return new CpuTeam(threads); }
FUSEBLOCK_EXPORT void fuseblock_rows_team_destroy(void* team) {
  delete static_cast<CpuTeam*>(team);
}

// The name of the kernel with that number, null after the last.
FUSEBLOCK_EXPORT const char* fuseblock_rows_kernel(size_t number) {
  return number < std::size(fuseblock::kRowKernels) ? fuseblock::kRowKernels[number].name : nullptr;
}

// A kernel bound to its operands: cuda_device -1 for the CPU, with `team` or (null) on the caller's
// thread. Null after an error, which is printed.
FUSEBLOCK_EXPORT void* fuseblock_rows_bind(const char* kernel, int cuda_device, void* team,
                                           const FuseblockRowsTensor* inputs, size_t input_count,
                                           const FuseblockRowsTensor* outputs,
                                           size_t output_count) {
  const fuseblock::RowKernel* found = fuseblock::Find(kernel);
  if (found == nullptr || found->inputs != input_count || found->outputs != output_count) {
    std::fprintf(stderr, "%s: no such kernel of %zu inputs and %zu outputs\n", kernel, input_count,
                 output_count);
    return nullptr;
  }
  auto call = std::make_unique<fuseblock::BoundCall>();
  call->kernel = found;
  call->context.device = DeviceOf(cuda_device);
  if (team != nullptr) call->context.parallel_for = static_cast<CpuTeam*>(team)->parallel_for();
  const auto view = [&](const FuseblockRowsTensor& tensor) {
    return TensorView(tensor.data, static_cast<DType>(tensor.dtype),
                      absl::MakeConstSpan(tensor.shape, static_cast<size_t>(tensor.rank)),
                      DeviceOf(tensor.cuda_device));
  };
  for (size_t i = 0; i < input_count; ++i) call->inputs.push_back(view(inputs[i]));
  for (size_t i = 0; i < output_count; ++i) call->outputs.push_back(view(outputs[i]));
  return call.release();
}

FUSEBLOCK_EXPORT void fuseblock_rows_release(void* call) {
  delete static_cast<fuseblock::BoundCall*>(call);
}

// Runs it, or enqueues it on that CUDA stream. 0, or 1 after an error, which is printed.
FUSEBLOCK_EXPORT int fuseblock_rows_run(void* bound, void* stream) {
  auto& call = *static_cast<fuseblock::BoundCall*>(bound);
  call.context.stream = stream;
  const absl::Status status = call.kernel->run(call.context, call.inputs, call.outputs);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", call.kernel->name, std::string(status.message()).c_str());
  return 1;
}
