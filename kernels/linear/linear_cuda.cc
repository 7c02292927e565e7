// The host side of the product on CUDA: the weight's way to the device, its plan, the launch.
#include "kernels/linear/linear_cuda.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/cuda.h"
#include "kernels/base/status.h"
#include "kernels/linear/linear_packed.h"

namespace fuseblock {
namespace {

absl::Status MissingLauncher(const char* name) {
  const std::string reason = CudaUnavailableReason();
  return absl::UnavailableError(
      reason.empty() ? absl::StrCat("the CUDA backend has no launcher \"", name, "\"") : reason);
}

// Dense rows of host memory to the device, one copy when they are dense already.
absl::Status CopyRows(const FuseblockCudaRuntime& cuda, Device device, const void* source,
                      size_t row_bytes, size_t stride_bytes, int64_t rows, std::byte* destination) {
  const bool dense = row_bytes == stride_bytes;
  const size_t bytes = dense ? row_bytes * static_cast<size_t>(rows) : row_bytes;
  for (int64_t row = 0; row < (dense ? 1 : rows); ++row) {
    const std::byte* from = static_cast<const std::byte*>(source) + row * stride_bytes;
    const int error =
        cuda.copy_async(device.index, destination + row * row_bytes, from, bytes, nullptr);
    if (error != 0) return CudaStatus("copying a weight to the device", error);
  }
  return CudaStatus("copying a weight to the device",
                    cuda.stream_synchronize(device.index, nullptr));
}

}  // namespace

LinearWeight::Packed::~Packed() {
  if (plan == nullptr) return;
  if (auto* release = CudaLauncher<FuseblockLinearPlanFree>("linear_plan_free")) release(plan);
}

absl::Status PrepareLinearCuda(const void* weight, int64_t stride, LinearWeight::Packed& packed) {
  const FuseblockCudaRuntime* cuda = CudaRuntime();
  auto* make_plan = CudaLauncher<FuseblockLinearPlan>("linear_plan");
  if (cuda == nullptr || make_plan == nullptr) return MissingLauncher("linear_plan");
  const size_t size = static_cast<size_t>(SizeOf(packed.dtype));
  const size_t row_bytes = static_cast<size_t>(packed.k) * size;
  absl::StatusOr<Buffer> buffer = Buffer::Allocate(
      MemoryKind::kDevice, static_cast<size_t>(packed.n) * row_bytes, packed.device);
  if (!buffer.ok()) return buffer.status();
  packed.weight = *std::move(buffer);
  if (packed.weight.size() != 0) {
    if (absl::Status s =
            CopyRows(*cuda, packed.device, weight, row_bytes, static_cast<size_t>(stride) * size,
                     packed.n, packed.weight.data());
        !s.ok()) {
      return s;
    }
  }
  if (packed.bias.size() != 0) {
    FUSEBLOCK_ASSIGN_OR_RETURN(
        packed.bias, Buffer::CopyToDevice(packed.bias.data(), packed.bias.size(), packed.device));
  }
  char algorithm[64] = "";
  const int error =
      make_plan(packed.device.index, static_cast<int>(packed.dtype), packed.n, packed.k,
                packed.segments, packed.weight.data(), packed.bias_data(), &packed.plan, algorithm);
  if (error == -1) {
    return absl::InternalError(
        absl::StrCat("linear [", packed.n, ", ", packed.k, "] ", std::string(Name(packed.dtype)),
                     ": no cuBLASLt algorithm gives a row the same bits alone and in a batch"));
  }
  packed.algorithm = algorithm;
  return CudaStatus("planning a product", error);
}

absl::Status LinearCuda(const ExecutionContext& context, const LinearArgs& args) {
  auto* launch = CudaLauncher<FuseblockLinear>("linear");
  if (launch == nullptr) return MissingLauncher("linear");
  const LinearWeight::Packed& packed = args.weight->packed();
  const FuseblockCudaRows x = CudaRows(args.x, packed.dtype);
  const FuseblockCudaRows y = CudaRows(args.y, args.y_dtype);
  return CudaStatus("linear",
                    launch(packed.plan, &x, &y, static_cast<int>(args.epilogue), context.stream));
}

}  // namespace fuseblock
