// The feed-forward path as the benchmarks' libraries hand it to Python: a block behind a pointer,
// errors printed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
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

// y = x + down(silu(gate(n)) * up(n)), n = RMSNorm(x) of eps 1e-5. dtype: DType's number. Host
// memory that is copied: norm [hidden], gate and up [intermediate, hidden], down [hidden,
// intermediate]. Null after an error.
inline const Block* CreateFfn(int dtype, int64_t hidden, int64_t intermediate, const void* norm,
                              const void* gate, const void* up, const void* down, Device device,
                              const ParallelFor& parallel_for = {}) {
  BlockSpec spec;
  spec.kind = BlockKind::kFfnPath;
  spec.dtype = static_cast<DType>(dtype);
  spec.hidden = hidden;
  spec.intermediate = intermediate;
  spec.norm.eps = 1e-5f;
  BlockWeights weights;
  weights.norm = ConstTensorView(norm, spec.dtype, {hidden});
  weights.gate = ConstTensorView(gate, spec.dtype, {intermediate, hidden});
  weights.up = ConstTensorView(up, spec.dtype, {intermediate, hidden});
  weights.down = ConstTensorView(down, spec.dtype, {hidden, intermediate});
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
  return Report(
      ffn.Run(context, inputs, outputs,
              absl::MakeSpan(static_cast<std::byte*>(workspace), ffn.WorkspaceBytes(rows))));
}

}  // namespace fuseblock
