// Memory that is owned: a weight, a workspace, a staging area. Freed with its owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/base/tensor_view.h"

namespace fuseblock {

enum class MemoryKind {
  kHost,    // 256-byte aligned, as blocks ask; from 2 MiB on, aligned to and advised as huge pages
  kPinned,  // page-locked host memory, for copies to and from a GPU
  kDevice,  // a GPU's memory
};

// Move-only. Contents are undefined after Allocate. Destroying a device or pinned buffer after the
// device was lost is safe.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  // RESOURCE_EXHAUSTED with the size and the place when there is not enough. `device` matters only
  // for kDevice. 0 bytes is an empty buffer.
  static absl::StatusOr<Buffer> Allocate(MemoryKind kind, size_t bytes, Device device = {});

  // `bytes` of host memory, copied to the GPU `device`; the copy is complete on return. UNAVAILABLE
  // when there is no CUDA backend, else as Allocate.
  static absl::StatusOr<Buffer> CopyToDevice(const void* host, size_t bytes, Device device);

  // Gives every page of host memory its place now, which otherwise the first use of each does: no
  // later use waits for that, and the process grows no more with what it uses. The contents stay
  // undefined. Pinned and device memory have theirs.
  void MakeResident();

  // How many allocations this process has made so far, of any kind: a serving path that has what it
  // needs makes none.
  static int64_t allocations();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  MemoryKind kind() const { return kind_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  MemoryKind kind_ = MemoryKind::kHost;
  Device device_;
};

}  // namespace fuseblock
