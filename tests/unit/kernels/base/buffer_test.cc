#include "kernels/base/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/base/cuda.h"

namespace fuseblock {
namespace {

bool Aligned(const Buffer& buffer, uintptr_t alignment) {
  return reinterpret_cast<uintptr_t>(buffer.data()) % alignment == 0;
}

TEST(Buffer, HostMemoryIsAligned) {
  for (const size_t bytes :
       {size_t{1}, size_t{63}, size_t{4096}, size_t{2} << 20, (size_t{2} << 20) + 1}) {
    const auto buffer = Buffer::Allocate(MemoryKind::kHost, bytes);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    EXPECT_EQ(buffer->size(), bytes);
    EXPECT_TRUE(Aligned(*buffer, bytes >= size_t{2} << 20 ? size_t{2} << 20 : 256));
    std::memset(buffer->data(), 1, bytes);
  }
}

TEST(Buffer, HostMemoryIsMadeResident) {
  // More than one huge page, and a part of one.
  constexpr size_t kBytes = (size_t{4} << 20) + 4097;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto buffer = *Buffer::Allocate(MemoryKind::kHost, kBytes);
  buffer.MakeResident();
  std::vector<unsigned char> resident((kBytes + page - 1) / page);
  ASSERT_EQ(mincore(buffer.data(), kBytes, resident.data()), 0);
  for (size_t i = 0; i < resident.size(); ++i) ASSERT_TRUE(resident[i] & 1) << "page " << i;
  Buffer().MakeResident();
}

TEST(Buffer, NothingIsEmpty) {
  for (const MemoryKind kind : {MemoryKind::kHost, MemoryKind::kPinned, MemoryKind::kDevice}) {
    const auto buffer = Buffer::Allocate(kind, 0);
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ(buffer->data(), nullptr);
    EXPECT_EQ(buffer->size(), 0u);
  }
}

TEST(Buffer, MoreThanThereIsIsRefused) {
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 4096, size_t{1} << 62}) {
    const auto buffer = Buffer::Allocate(MemoryKind::kHost, bytes);
    EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
  }
}

TEST(Buffer, MovesItsMemory) {
  Buffer a = *Buffer::Allocate(MemoryKind::kHost, 100);
  std::byte* const data = a.data();
  Buffer b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT(bugprone-use-after-move): that is the question
  b = *Buffer::Allocate(MemoryKind::kHost, 10);
  EXPECT_EQ(b.size(), 10u);
}

// With a GPU: copies there and back. Without: a refusal that says why.
TEST(Buffer, DeviceMemory) {
  constexpr size_t kBytes = 1000;
  auto device = Buffer::Allocate(MemoryKind::kDevice, kBytes, {DeviceType::kCuda, 0});
  auto pinned = Buffer::Allocate(MemoryKind::kPinned, kBytes);
  if (CudaRuntime() == nullptr) {
    EXPECT_EQ(device.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(pinned.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(device.status().message(), CudaUnavailableReason());
    EXPECT_FALSE(CudaUnavailableReason().empty());
    return;
  }
  ASSERT_TRUE(device.ok() && pinned.ok()) << device.status() << pinned.status();
  EXPECT_TRUE(Aligned(*device, 256));
  void* stream = nullptr;
  ASSERT_EQ(CudaRuntime()->stream_create(0, &stream), 0);
  std::memset(pinned->data(), 7, kBytes);
  ASSERT_EQ(CudaRuntime()->copy_async(0, device->data(), pinned->data(), kBytes, stream), 0);
  ASSERT_EQ(CudaRuntime()->stream_synchronize(0, stream), 0);
  std::memset(pinned->data(), 0, kBytes);
  ASSERT_EQ(CudaRuntime()->copy_async(0, pinned->data(), device->data(), kBytes, stream), 0);
  ASSERT_EQ(CudaRuntime()->stream_synchronize(0, stream), 0);
  EXPECT_EQ(pinned->data()[kBytes - 1], std::byte{7});
  CudaRuntime()->stream_destroy(0, stream);
}

}  // namespace
}  // namespace fuseblock
