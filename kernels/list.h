// Every kernel of the library by name, with its implementations: what `fuseblock kernels` prints
// and the generated tests walk. A new kernel is a new folder and one line in list.cc.
#pragma once

#include <vector>

#include "kernels/base/implementation.h"

namespace fuseblock {

struct KernelEntry {
  const char* name;  // the folder under kernels/
  std::vector<ImplementationInfo> (*implementations)();
};

absl::Span<const KernelEntry> Kernels();

}  // namespace fuseblock
