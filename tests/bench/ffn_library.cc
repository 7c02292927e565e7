// libfuseblock_ffn.so: the feed-forward path on the CPU, and what bounds it, behind a few C
// functions, so that a benchmark in Python can run them in turns with its own peers.
#include "kernels/base/buffer.h"
#include "server/engine/cpu_team.h"
#include "tests/bench/cpu_ceilings.h"
#include "tests/bench/ffn_block.h"

using fuseblock::Block;
using fuseblock::Buffer;
using fuseblock::CpuTeam;
using fuseblock::MemoryKind;
using fuseblock::Report;

namespace {

fuseblock::ParallelFor ThreadsOf(const void* team) {
  return const_cast<CpuTeam*>(static_cast<const CpuTeam*>(team))->parallel_for();
}

}  // namespace

FUSEBLOCK_EXPORT void* fuseblock_ffn_team_create(int threads) { return new CpuTeam(threads); }

FUSEBLOCK_EXPORT void fuseblock_ffn_team_destroy(void* team) { delete static_cast<CpuTeam*>(team); }

// As CreateFfn, of SwiGLU.
FUSEBLOCK_EXPORT const void* fuseblock_ffn_create(const void* team, int dtype, int64_t hidden,
                                                  int64_t intermediate, const void* norm,
                                                  const void* gate, const void* up,
                                                  const void* down) {
  return fuseblock::CreateFfn(dtype, static_cast<int>(fuseblock::Activation::kSilu), hidden,
                              intermediate, {norm, gate, up, nullptr, down, nullptr}, {},
                              ThreadsOf(team));
}

FUSEBLOCK_EXPORT void fuseblock_ffn_destroy(const void* block) {
  delete static_cast<const Block*>(block);
}

FUSEBLOCK_EXPORT size_t fuseblock_ffn_workspace_bytes(const void* block, int64_t rows) {
  return static_cast<const Block*>(block)->WorkspaceBytes(rows);
}

// As RunFfn.
FUSEBLOCK_EXPORT int fuseblock_ffn_run(const void* team, const void* block, int64_t rows,
                                       const void* x, void* y, void* workspace) {
  return fuseblock::RunFfn({fuseblock::Device(), nullptr, ThreadsOf(team)}, block, rows, x, y,
                           workspace);
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
