#include "kernels/base/buffer.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "kernels/base/align.h"
#include "kernels/base/cuda.h"
#include "kernels/base/status.h"

namespace fuseblock {
namespace {

std::atomic<int64_t> allocated{0};

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSmallPage = 4096;

void* AllocateHost(size_t bytes) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : kTensorAlignment;
  if (bytes > SIZE_MAX - alignment) return nullptr;
  const size_t rounded = RoundUp(bytes, alignment);
  void* p = std::aligned_alloc(alignment, rounded);
  // Weights are read as one long stream: with 4 KiB pages the walk of the page table halves its
  // speed.
  if (p != nullptr && alignment == kHugePage) madvise(p, rounded, MADV_HUGEPAGE);
  return p;
}

}  // namespace

absl::StatusOr<Buffer> Buffer::Allocate(MemoryKind kind, size_t bytes, Device device) {
  Buffer buffer;
  buffer.kind_ = kind;
  buffer.device_ = device;
  if (bytes == 0) return buffer;
  void* p = nullptr;
  if (kind == MemoryKind::kHost) {
    p = AllocateHost(bytes);
    if (p == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no ", bytes, " bytes of host memory to be had"));
    }
  } else {
    const FuseblockCudaRuntime* cuda = CudaRuntime();
    if (cuda == nullptr) return absl::UnavailableError(CudaUnavailableReason());
    const int error = kind == MemoryKind::kPinned ? cuda->host_malloc(bytes, &p)
                                                  : cuda->malloc(device.index, bytes, &p);
    const std::string what =
        absl::StrCat("allocating ", bytes, " bytes of ",
                     kind == MemoryKind::kPinned ? "pinned host" : DeviceName(device), " memory");
    if (error != 0) return CudaStatus(what.c_str(), error);
  }
  buffer.data_ = static_cast<std::byte*>(p);
  buffer.size_ = bytes;
  ++allocated;
  return buffer;
}

void Buffer::MakeResident() {
  if (kind_ != MemoryKind::kHost) return;
  for (size_t at = 0; at < size_; at += kSmallPage) data_[at] = std::byte{0};
  if (size_ > 0) data_[size_ - 1] = std::byte{0};
}

int64_t Buffer::allocations() { return allocated; }

absl::StatusOr<Buffer> Buffer::CopyToDevice(const void* host, size_t bytes, Device device) {
  FUSEBLOCK_ASSIGN_OR_RETURN(Buffer buffer, Allocate(MemoryKind::kDevice, bytes, device));
  if (bytes == 0) return buffer;
  const FuseblockCudaRuntime* cuda = CudaRuntime();
  FUSEBLOCK_RETURN_IF_ERROR(
      CudaStatus("copying to the device",
                 cuda->copy_async(device.index, buffer.data(), host, bytes, nullptr)));
  FUSEBLOCK_RETURN_IF_ERROR(
      CudaStatus("copying to the device", cuda->stream_synchronize(device.index, nullptr)));
  return buffer;
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(kind_, other.kind_);
  std::swap(device_, other.device_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  switch (kind_) {
    case MemoryKind::kHost:
      std::free(data_);
      break;
    case MemoryKind::kPinned:
      CudaRuntime()->host_free(data_);
      break;
    case MemoryKind::kDevice:
      CudaRuntime()->free(device_.index, data_);
      break;
  }
}

}  // namespace fuseblock
