// libfuseblock_gpu_ffn.so: feed-forward networks in BF16 or FP16 behind a few C functions, so that
// a benchmark in Python can run it on its own streams, inside its own CUDA graphs, beside its own
// peers.
#include "tests/bench/ffn_block.h"

using fuseblock::Block;

namespace {

constexpr fuseblock::Device kGpu{fuseblock::DeviceType::kCuda, 0};

}  // namespace

// As CreateFfn.
FUSEBLOCK_EXPORT const void* fuseblock_ffn_create(int dtype, int activation, int64_t hidden,
                                                  int64_t intermediate, const void* norm,
                                                  const void* gate, const void* up,
                                                  const void* up_bias, const void* down,
                                                  const void* down_bias) {
  return fuseblock::CreateFfn(dtype, activation, hidden, intermediate,
                              {norm, gate, up, up_bias, down, down_bias}, kGpu);
}

FUSEBLOCK_EXPORT void fuseblock_ffn_destroy(const void* block) {
  delete static_cast<const Block*>(block);
}

FUSEBLOCK_EXPORT size_t fuseblock_ffn_workspace_bytes(const void* block, int64_t rows) {
  return static_cast<const Block*>(block)->WorkspaceBytes(rows);
}

// As RunFfn; x and y on the device.
FUSEBLOCK_EXPORT int fuseblock_ffn_run(const void* block, int64_t rows, const void* x, void* y,
                                       void* workspace, void* stream) {
  return fuseblock::RunFfn({kGpu, stream, {}}, block, rows, x, y, workspace);
}
