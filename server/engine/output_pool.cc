#include "server/engine/output_pool.h"

#include <algorithm>
#include <new>

#include "kernels/base/align.h"

namespace fuseblock {

absl::StatusOr<std::shared_ptr<OutputPool>> OutputPool::Create(MemoryKind kind, size_t slab_bytes,
                                                               int slabs, MemoryGauge* gauge) {
  // Not 0 bytes: a slab is known by its address.
  slab_bytes = std::max<size_t>(slab_bytes, 1);
  std::shared_ptr<OutputPool> pool(new OutputPool(slab_bytes, gauge));
  for (int i = 0; i < slabs; ++i) {
    absl::StatusOr<Buffer> buffer = Buffer::Allocate(kind, slab_bytes);
    if (!buffer.ok()) return buffer.status();
    buffer->MakeResident();
    pool->free_.push_back(buffer->data());
    pool->buffers_.push_back(*std::move(buffer));
    if (gauge != nullptr) gauge->AddReserved(static_cast<int64_t>(slab_bytes));
  }
  return pool;
}

OutputPool::~OutputPool() {
  if (gauge_ != nullptr) gauge_->AddReserved(-static_cast<int64_t>(slab_bytes_ * buffers_.size()));
}

OutputPool::Slab OutputPool::Take() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty()) return nullptr;
  std::byte* slab = free_.back();
  free_.pop_back();
  if (gauge_ != nullptr) gauge_->AddUsed(static_cast<int64_t>(slab_bytes_));
  return Slab(slab, [pool = shared_from_this()](std::byte* p) { pool->Return(p); });
}

void OutputPool::Return(std::byte* slab) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(slab);
  if (gauge_ != nullptr) gauge_->AddUsed(-static_cast<int64_t>(slab_bytes_));
}

int OutputPool::free_slabs() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(free_.size());
}

std::shared_ptr<std::byte> AllocateOutputs(size_t bytes) {
  auto* memory = static_cast<std::byte*>(
      ::operator new(bytes, std::align_val_t(kTensorAlignment), std::nothrow));
  if (memory == nullptr) return nullptr;
  return {memory, [](std::byte* p) { ::operator delete(p, std::align_val_t(kTensorAlignment)); }};
}

}  // namespace fuseblock
