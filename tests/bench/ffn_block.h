// Feed-forward networks as the benchmarks' libraries hand it to Python: a block behind a pointer,
// errors printed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "absl/types/span.h"
#include "kernels/block/block.h"

#define FUSEBLOCK_EXPORT extern "C" __attribute__((visibility("default")))

namespace fuseblock {

// 0 for OK.
inline int Report(const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

// A network's weights in host memory, which are copied; null: what it has not. norm [hidden], gate
// and up [intermediate, hidden], up_bias [intermediate], down [hidden, intermediate], down_bias
// [hidden].
struct FfnMemory {
  const void *norm, *gate, *up, *up_bias, *down, *down_bias;
};

// y = x + mlp(n), n = RMSNorm(x) of eps 1e-5, or without a norm y = mlp(x); without a gate the
// dense form. dtype, activation: DType's and Activation's numbers. Null after an error.
inline const Block* CreateFfn(int dtype, int activation, int64_t hidden, int64_t intermediate,
                              const FfnMemory& memory, Device device,
                              const ParallelFor& parallel_for = {}) {
  BlockSpec spec;
  spec.kind = memory.norm == nullptr ? BlockKind::kMlp : BlockKind::kFfnPath;
  spec.dtype = static_cast<DType>(dtype);
  spec.hidden = hidden;
  spec.intermediate = intermediate;
  spec.norm.eps = 1e-5f;
  spec.activation = static_cast<Activation>(activation);
  spec.gated = memory.gate != nullptr;
  const auto view = [&](const void* data, std::initializer_list<int64_t> shape) {
    return data == nullptr ? std::nullopt : std::optional(ConstTensorView(data, spec.dtype, shape));
  };
  BlockWeights weights;
  weights.norm = view(memory.norm, {hidden});
  weights.gate = view(memory.gate, {intermediate, hidden});
  weights.up = view(memory.up, {intermediate, hidden});
  weights.up_bias = view(memory.up_bias, {intermediate});
  weights.down = view(memory.down, {hidden, intermediate});
  weights.down_bias = view(memory.down_bias, {hidden});
  auto block = Block::Create(spec, weights, device, parallel_for);
  return Report(block.status()) == 0 ? block->release() : nullptr;
}

// x, y: [rows, hidden] where the context runs; workspace: WorkspaceBytes(rows), 256-byte aligned. 0
// when it ran or was enqueued.
inline int RunFfn(const ExecutionContext& context, const void* block, int64_t rows, const void* x,
                  void* y, void* workspace) {
  const Block& ffn = *static_cast<const Block*>(block);
  const DType dtype = ffn.spec().dtype;
  const int64_t hidden = ffn.spec().hidden;
  const ConstTensorView inputs[] = {ConstTensorView(x, dtype, {rows, hidden}, context.device),
                                    ConstTensorView(TensorView())};
  const TensorView outputs[] = {TensorView(y, dtype, {rows, hidden}, context.device)};
  const size_t taken = ffn.spec().kind == BlockKind::kFfnPath ? 2 : 1;
  return Report(
      ffn.Run(context, absl::MakeSpan(inputs).first(taken), outputs,
              absl::MakeSpan(static_cast<std::byte*>(workspace), ffn.WorkspaceBytes(rows))));
}

}  // namespace fuseblock
