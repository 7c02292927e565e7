// A feed-forward path, y = h + mlp(norm(h)) with h = x + residual, on this machine's best kernels:
// describe the arithmetic, hand over the weights, run any number of rows.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/block/block.h"
#include "kernels/list.h"

namespace {

constexpr int64_t kHidden = 256, kIntermediate = 688, kRows = 5;

std::vector<float> Random(int64_t count, float scale, std::mt19937& random) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

fuseblock::ConstTensorView View(const std::vector<float>& values,
                                std::initializer_list<int64_t> shape) {
  return {values.data(), fuseblock::DType::kF32, shape};
}

absl::Status Run() {
  std::mt19937 random(1);
  const auto norm = Random(kHidden, 1, random);
  const auto gate = Random(kIntermediate * kHidden, 0.06f, random);
  const auto up = Random(kIntermediate * kHidden, 0.06f, random);
  const auto down = Random(kHidden * kIntermediate, 0.04f, random);
  const auto x = Random(kRows * kHidden, 1, random);
  const auto residual = Random(kRows * kHidden, 1, random);
  std::vector<float> y(kRows * kHidden), alone(kHidden);

  fuseblock::BlockSpec spec;
  spec.kind = fuseblock::BlockKind::kFfnPath;
  spec.dtype = fuseblock::DType::kF32;
  spec.hidden = kHidden;
  spec.intermediate = kIntermediate;
  spec.norm.eps = 1e-5f;

  fuseblock::BlockWeights weights;
  weights.norm = View(norm, {kHidden});
  weights.gate = View(gate, {kIntermediate, kHidden});
  weights.up = View(up, {kIntermediate, kHidden});
  weights.down = View(down, {kHidden, kIntermediate});

  // The weights are packed for the device once; a block is constant from then on.
  const fuseblock::ExecutionContext context;  // the CPU, on this thread
  auto block = fuseblock::Block::Create(spec, weights, context.device);
  if (!block.ok()) return block.status();
  auto workspace =
      fuseblock::Buffer::Allocate(fuseblock::MemoryKind::kHost, (*block)->WorkspaceBytes(kRows));
  if (!workspace.ok()) return workspace.status();
  const absl::Span<std::byte> scratch(workspace->data(), workspace->size());

  const auto run = [&](int64_t rows, const float* in, const float* added, float* out) {
    return (*block)->Run(context,
                         {fuseblock::ConstTensorView(in, spec.dtype, {rows, kHidden}),
                          fuseblock::ConstTensorView(added, spec.dtype, {rows, kHidden})},
                         {fuseblock::TensorView(out, spec.dtype, {rows, kHidden})}, scratch);
  };
  if (auto status = run(kRows, x.data(), residual.data(), y.data()); !status.ok()) return status;

  // A row's bits do not depend on the rows beside it.
  const int64_t last = (kRows - 1) * kHidden;
  if (auto status = run(1, x.data() + last, residual.data() + last, alone.data()); !status.ok()) {
    return status;
  }
  for (int64_t i = 0; i < kHidden; ++i) {
    if (alone[i] != y[last + i]) return absl::InternalError("a row changed with its batch");
  }
  std::printf("%s\n", fuseblock::Block::Formula(spec).c_str());
  std::printf("y[0, 0] = %.6f; the last row alone has the same bits\n", y[0]);
  return absl::OkStatus();
}

}  // namespace

int main() {
  for (const fuseblock::KernelEntry& kernel : fuseblock::Kernels()) {
    for (const auto& item : kernel.implementations()) {
      if (item.device != fuseblock::DeviceType::kCpu || !item.unavailable.empty()) continue;
      std::printf("%-14s %s %s\n", kernel.name, item.name, item.detail.c_str());
      break;
    }
  }
  const absl::Status status = Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
