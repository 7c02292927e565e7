// libfuseblock_ffn.so: the feed-forward path on the CPU, and what bounds it, behind a few C
// functions, so that a benchmark in Python can run them in turns with its own peers.
#include <cstdio>

#include "absl/types/span.h"
#include "kernels/base/buffer.h"
#include "kernels/block/block.h"
#include "server/engine/cpu_team.h"
#include "tests/bench/cpu_ceilings.h"

namespace fuseblock {
namespace {

int Report(const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

ParallelFor ThreadsOf(const void* team) {
  return const_cast<CpuTeam*>(static_cast<const CpuTeam*>(team))->parallel_for();
}

}  // namespace
}  // namespace fuseblock

using fuseblock::Block;
using fuseblock::BlockKind;
using fuseblock::Buffer;
using fuseblock::ConstTensorView;
using fuseblock::CpuTeam;
using fuseblock::DType;
using fuseblock::MemoryKind;
using fuseblock::Report;
using fuseblock::TensorView;
using fuseblock::ThreadsOf;

#define FUSEBLOCK_EXPORT extern "C" __attribute__((visibility("default")))

FUSEBLOCK_EXPORT void* fuseblock_ffn_team_create(int threads) { return new CpuTeam(threads); }

FUSEBLOCK_EXPORT void fuseblock_ffn_team_destroy(void* team) { delete static_cast<CpuTeam*>(team); }

// y = x + down(silu(gate(n)) * up(n)), n = RMSNorm(x) of eps 1e-5. dtype: DType's number. norm:
// [hidden], gate and up: [intermediate, hidden], down: [hidden, intermediate]; they are copied.
// Null after an error, which is printed.
FUSEBLOCK_EXPORT const void* fuseblock_ffn_create(const void* team, int dtype, int64_t hidden,
                                                  int64_t intermediate, const void* norm,
                                                  const void* gate, const void* up,
                                                  const void* down) {
  fuseblock::BlockSpec spec;
  spec.kind = BlockKind::kFfnPath;
  spec.dtype = static_cast<DType>(dtype);
  spec.hidden = hidden;
  spec.intermediate = intermediate;
  spec.norm.eps = 1e-5f;
  fuseblock::BlockWeights weights;
  weights.norm = ConstTensorView(norm, spec.dtype, {hidden});
  weights.gate = ConstTensorView(gate, spec.dtype, {intermediate, hidden});
  weights.up = ConstTensorView(up, spec.dtype, {intermediate, hidden});
  weights.down = ConstTensorView(down, spec.dtype, {hidden, intermediate});
  auto block = Block::Create(spec, weights, fuseblock::Device(), ThreadsOf(team));
  return Report(block.status()) == 0 ? block->release() : nullptr;
}

FUSEBLOCK_EXPORT void fuseblock_ffn_destroy(const void* block) {
  delete static_cast<const Block*>(block);
}

FUSEBLOCK_EXPORT size_t fuseblock_ffn_workspace_bytes(const void* block, int64_t rows) {
  return static_cast<const Block*>(block)->WorkspaceBytes(rows);
}

// x, y: [rows, hidden]; workspace: of the size above, 256-byte aligned. 0: done.
FUSEBLOCK_EXPORT int fuseblock_ffn_run(const void* team, const void* block, int64_t rows,
                                       const void* x, void* y, void* workspace) {
  const Block& ffn = *static_cast<const Block*>(block);
  const int64_t hidden = ffn.spec().hidden;
  const ConstTensorView inputs[] = {ConstTensorView(x, ffn.spec().dtype, {rows, hidden}),
                                    ConstTensorView(TensorView())};
  const TensorView outputs[] = {TensorView(y, ffn.spec().dtype, {rows, hidden})};
  return Report(
      ffn.Run({fuseblock::Device(), nullptr, ThreadsOf(team)}, inputs, outputs,
              absl::MakeSpan(static_cast<std::byte*>(workspace), ffn.WorkspaceBytes(rows))));
}

// Host memory as weights lie in it. Null: there is none.
FUSEBLOCK_EXPORT void* fuseblock_ffn_memory_create(size_t bytes) {
  auto buffer = Buffer::Allocate(MemoryKind::kHost, bytes);
  return Report(buffer.status()) == 0 ? new Buffer(*std::move(buffer)) : nullptr;
}

FUSEBLOCK_EXPORT void* fuseblock_ffn_memory_data(void* memory) {
  return static_cast<Buffer*>(memory)->data();
}

FUSEBLOCK_EXPORT void fuseblock_ffn_memory_destroy(void* memory) {
  delete static_cast<Buffer*>(memory);
}

FUSEBLOCK_EXPORT uint64_t fuseblock_ffn_read(const void* team, const void* data, size_t bytes) {
  return fuseblock::ReadOnce(static_cast<const std::byte*>(data), bytes, ThreadsOf(team));
}

// FLOP/s.
FUSEBLOCK_EXPORT double fuseblock_ffn_peak(const void* team, int bf16) {
  return fuseblock::MultiplyPeak(bf16 != 0, ThreadsOf(team));
}
