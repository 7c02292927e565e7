#include "server/engine/cuda_graphs.h"

namespace fuseblock {

// On a lost device these calls fail, and there is nothing left to free.
BlockGraphs::~BlockGraphs() {
  for (const auto& form : graphs_) {
    for (void* graph : form) {
      if (graph != nullptr) CudaRuntime()->graph_destroy(device_.index, graph);
    }
  }
  totals_->Add(-count_, -bytes_);
}

void BlockGraphs::Add(int form, int bucket, void* graph, int64_t bytes) {
  graphs_[form][bucket] = graph;
  ++count_;
  bytes_ += bytes;
  totals_->Add(1, bytes);
}

}  // namespace fuseblock
