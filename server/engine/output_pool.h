// A lane's output staging: a fixed number of slabs. Answers alias their slab until the transport
// has sent them, so a slab is out for as long as the slowest reader of its batch takes.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/buffer.h"
#include "server/observe/metrics.h"

namespace fuseblock {

// Thread-safe. Lives until its last slab has come back.
class OutputPool : public std::enable_shared_from_this<OutputPool> {
 public:
  // A slab while it is out: back in the pool when the last copy of it is gone.
  using Slab = std::shared_ptr<std::byte>;

  // RESOURCE_EXHAUSTED when there is no memory. The gauge must outlive the pool; may be null.
  static absl::StatusOr<std::shared_ptr<OutputPool>> Create(MemoryKind kind, size_t slab_bytes,
                                                            int slabs, MemoryGauge* gauge);
  ~OutputPool();

  // Null when all are out.
  Slab Take();
  int free_slabs() const;
  size_t slab_bytes() const { return slab_bytes_; }

 private:
  OutputPool(size_t slab_bytes, MemoryGauge* gauge) : slab_bytes_(slab_bytes), gauge_(gauge) {}
  void Return(std::byte* slab);

  const size_t slab_bytes_;
  MemoryGauge* const gauge_;
  std::vector<Buffer> buffers_;
  mutable std::mutex mutex_;
  std::vector<std::byte*> free_;
};

// Outputs beside any pool, laid out as in a slab; null when there is no memory.
std::shared_ptr<std::byte> AllocateOutputs(size_t bytes);

}  // namespace fuseblock
