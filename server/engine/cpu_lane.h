// The CPU's lane: a team of threads and a workspace. Batches are computed where they were gathered.
#pragma once

#include <memory>

#include "server/engine/cpu_team.h"
#include "server/engine/lane.h"

namespace fuseblock {

class CpuLane final : public Lane {
 public:
  explicit CpuLane(int threads) : team_(threads) {}

  Device device() const override { return {}; }
  MemoryKind staging() const override { return MemoryKind::kHost; }
  ParallelFor parallel_for() override { return team_.parallel_for(); }
  absl::Status Reserve(const LaneBytes& bytes) override;
  size_t device_bytes() const override { return workspace_.size(); }
  absl::Status Run(const LaneBatch& batch, LaneTimes* times) override;

 private:
  CpuTeam team_;
  Buffer workspace_;
};

}  // namespace fuseblock
