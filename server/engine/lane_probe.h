// The small known computation by which a lane shows that its device works: h = x + residual, which
// is exact, and y = norm(h), which is known beforehand. It copies in, launches and copies out like
// any batch.
#pragma once

#include <vector>

#include "server/engine/lane.h"

namespace fuseblock {

// Constant; any number of lanes may run it at a time.
class LaneProbe {
 public:
  // A device on which the block can't be made fails its probes.
  explicit LaneProbe(const std::vector<Device>& devices);

  LaneBytes BytesNeeded() const;  // of a lane that is to run it
  // OK when the lane ran it and both results are right; else the lane's error, or DATA_LOSS.
  absl::Status Run(Lane& lane) const;

 private:
  ServedBlock block_;
};

}  // namespace fuseblock
