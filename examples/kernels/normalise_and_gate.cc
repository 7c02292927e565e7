// Two kernels in a row, y = silu(gate) * up with [gate, up] = RmsNorm(x), on the CPU and, where
// there is one, on the first GPU: the same calls on views of memory that lies elsewhere.
//
//   normalise_and_gate [cpu|cuda:N]...      default: cpu, and cuda:0 where there is a GPU
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/cuda.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/swiglu/swiglu.h"

namespace {

using fuseblock::Device;
using fuseblock::DType;

constexpr int64_t kRows = 5, kColumns = 512;  // gate and up have half of them each
// The contracts' FP32 roundings of both kernels, in units of 2^-24, are below 64 on each side.
constexpr float kDifferenceMax = 2 * 64 * 0x1p-24f;

struct Inputs {
  std::vector<float> x, weight;
};

Inputs Draw() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  Inputs inputs{std::vector<float>(kRows * kColumns), std::vector<float>(kColumns)};
  for (float& value : inputs.x) value = normal(random);
  for (float& value : inputs.weight) value = normal(random);
  return inputs;
}

// Tensors at x, n and y on the context's device; n and y are written.
absl::Status NormaliseAndGate(const fuseblock::ExecutionContext& context, const void* x,
                              const void* weight, void* n, void* y) {
  const Device device = context.device;
  const fuseblock::TensorView normalised(n, DType::kF32, {kRows, kColumns}, device);
  if (absl::Status status = fuseblock::RmsNorm(
          context, fuseblock::ConstTensorView(x, DType::kF32, {kRows, kColumns}, device),
          fuseblock::ConstTensorView(weight, DType::kF32, {kColumns}, device),
          fuseblock::RmsNormParams{1e-5f}, normalised);
      !status.ok()) {
    return status;
  }
  return fuseblock::SwiGluPacked(
      context, normalised, fuseblock::Rounding::kFused,
      fuseblock::TensorView(y, DType::kF32, {kRows, kColumns / 2}, device));
}

absl::StatusOr<std::vector<float>> OnCpu(const Inputs& inputs) {
  std::vector<float> n(kRows * kColumns), y(kRows * kColumns / 2);
  const fuseblock::ExecutionContext context;  // the CPU, on this thread
  const absl::Status status =
      NormaliseAndGate(context, inputs.x.data(), inputs.weight.data(), n.data(), y.data());
  if (!status.ok()) return status;
  return y;
}

// A vector's bytes in the GPU's memory.
absl::StatusOr<fuseblock::Buffer> Upload(Device device, const std::vector<float>& values) {
  const size_t bytes = values.size() * sizeof(float);
  auto buffer = fuseblock::Buffer::Allocate(fuseblock::MemoryKind::kDevice, bytes, device);
  if (!buffer.ok()) return buffer;
  const absl::Status copied = fuseblock::CudaStatus(
      "copy", fuseblock::CudaRuntime()->copy_async(device.index, buffer->data(), values.data(),
                                                   bytes, nullptr));
  if (!copied.ok()) return copied;
  return buffer;
}

absl::StatusOr<std::vector<float>> OnGpu(Device device, const Inputs& inputs) {
  const FuseblockCudaRuntime* gpu = fuseblock::CudaRuntime();
  if (gpu == nullptr) return absl::UnavailableError(fuseblock::CudaUnavailableReason());
  std::vector<float> y(kRows * kColumns / 2);
  auto x = Upload(device, inputs.x);
  auto weight = Upload(device, inputs.weight);
  auto n = Upload(device, std::vector<float>(kRows * kColumns));
  auto out = Upload(device, y);
  for (const auto* buffer : {&x, &weight, &n, &out}) {
    if (!buffer->ok()) return buffer->status();
  }
  // Enqueued on the default stream, one after the other; the copy back waits for both.
  const fuseblock::ExecutionContext context{device, nullptr, {}};
  absl::Status status =
      NormaliseAndGate(context, x->data(), weight->data(), n->data(), out->data());
  if (!status.ok()) return status;
  status = fuseblock::CudaStatus(
      "copy", gpu->copy_async(device.index, y.data(), out->data(), out->size(), nullptr));
  if (!status.ok()) return status;
  status = fuseblock::CudaStatus("run", gpu->stream_synchronize(device.index, nullptr));
  if (!status.ok()) return status;
  return y;
}

// Prints what a device gave, and holds it to the CPU's.
absl::Status Show(const std::string& name, const std::vector<float>& y,
                  const std::vector<float>& on_cpu) {
  float worst = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const float scale = std::max(std::abs(on_cpu[i]), 0x1p-126f);
    worst = std::max(worst, std::abs(y[i] - on_cpu[i]) / scale);
  }
  std::printf("%-7s y[0, :3] = %.6f %.6f %.6f, differs from the CPU's by %.2g at most\n",
              name.c_str(), y[0], y[1], y[2], worst);
  if (worst <= kDifferenceMax) return absl::OkStatus();
  return absl::InternalError(name + " differs from the CPU by more than the contracts allow");
}

absl::Status Run(const std::vector<std::string>& devices) {
  const Inputs inputs = Draw();
  const auto on_cpu = OnCpu(inputs);
  if (!on_cpu.ok()) return on_cpu.status();
  for (const std::string& name : devices) {
    const bool gpu = name.rfind("cuda:", 0) == 0;
    if (!gpu && name != "cpu") return absl::InvalidArgumentError("no device " + name);
    const int index = gpu ? std::atoi(name.c_str() + std::strlen("cuda:")) : 0;
    const auto y = gpu ? OnGpu({fuseblock::DeviceType::kCuda, index}, inputs) : on_cpu;
    if (!y.ok()) return y.status();
    if (absl::Status status = Show(name, *y, *on_cpu); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> devices(argv + 1, argv + argc);
  if (devices.empty()) {
    devices = {"cpu"};
    if (fuseblock::CudaRuntime() != nullptr) devices.push_back("cuda:0");
  }
  const absl::Status status = Run(devices);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
