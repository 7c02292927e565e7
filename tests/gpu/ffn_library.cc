// libfuseblock_gpu_ffn.so: a feed-forward path in BF16 or FP16 behind a few C functions, so that a
// benchmark in Python can run it on its own streams, inside its own CUDA graphs, beside its own
// peers.
#include <cstdio>

#include "absl/types/span.h"
#include "kernels/block/block.h"

namespace fuseblock {
namespace {

constexpr Device kGpu{DeviceType::kCuda, 0};

int Report(const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace fuseblock

using fuseblock::Block;
using fuseblock::ConstTensorView;
using fuseblock::DType;
using fuseblock::TensorView;

#define FUSEBLOCK_EXPORT extern "C" __attribute__((visibility("default")))

// dtype: a fuseblock::DType. Weights are host memory: norm [hidden], gate and up [intermediate,
// hidden], down [hidden, intermediate]. Null after an error, which is printed.
FUSEBLOCK_EXPORT const void* fuseblock_ffn_create(int dtype, int64_t hidden, int64_t intermediate,
                                                  const void* norm, const void* gate,
                                                  const void* up, const void* down) {
  fuseblock::BlockSpec spec;
  spec.kind = fuseblock::BlockKind::kFfnPath;
  spec.dtype = static_cast<DType>(dtype);
  spec.hidden = hidden;
  spec.intermediate = intermediate;
  spec.norm.eps = 1e-5f;
  fuseblock::BlockWeights weights;
  weights.norm = ConstTensorView(norm, spec.dtype, {hidden});
  weights.gate = ConstTensorView(gate, spec.dtype, {intermediate, hidden});
  weights.up = ConstTensorView(up, spec.dtype, {intermediate, hidden});
  weights.down = ConstTensorView(down, spec.dtype, {hidden, intermediate});
  auto block = Block::Create(spec, weights, fuseblock::kGpu);
  if (fuseblock::Report(block.status()) != 0) return nullptr;
  return block->release();
}

FUSEBLOCK_EXPORT void fuseblock_ffn_destroy(const void* block) {
  delete static_cast<const Block*>(block);
}

FUSEBLOCK_EXPORT size_t fuseblock_ffn_workspace_bytes(const void* block, int64_t rows) {
  return static_cast<const Block*>(block)->WorkspaceBytes(rows);
}

// x, y: [rows, hidden] on the device; workspace: of the size above. 0 when it was enqueued.
FUSEBLOCK_EXPORT int fuseblock_ffn_run(const void* block, int64_t rows, const void* x, void* y,
                                       void* workspace, void* stream) {
  const Block& ffn = *static_cast<const Block*>(block);
  const int64_t hidden = ffn.spec().hidden;
  const DType dtype = ffn.spec().dtype;
  const ConstTensorView inputs[] = {ConstTensorView(x, dtype, {rows, hidden}, fuseblock::kGpu),
                                    ConstTensorView(TensorView())};
  const TensorView outputs[] = {TensorView(y, dtype, {rows, hidden}, fuseblock::kGpu)};
  return fuseblock::Report(
      ffn.Run({fuseblock::kGpu, stream, {}}, inputs, outputs,
              absl::MakeSpan(static_cast<std::byte*>(workspace), ffn.WorkspaceBytes(rows))));
}
