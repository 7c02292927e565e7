// How a product on the CPU is cut into tasks: private to linear/. A task makes up to 128 rows of up
// to 16 neighbouring panels of 64 outputs: a panel's weights are then worth reading and the rows'
// activations worth staging.
//
// Every implementation on the CPU but linear_amx_bf16.cc, which states an order of its own, sums an
// output in the same order, which depends on K alone: K is cut into segments of 64; a segment is
// one chain of fused multiply-adds from its first product to its last; the segments' sums are added
// in order to a total that starts at zero. So the error grows with 64 + K / 64 and not with K, and
// the bits depend neither on the rows beside nor on the task's shape.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/context.h"
#include "kernels/base/dtype.h"
#include "kernels/linear/linear.h"

namespace fuseblock {

inline constexpr int64_t kSegment = 64;  // of K; even, since BF16 lies in pairs
inline constexpr int64_t kTaskRowsMax = 128;
inline constexpr int64_t kGroupPanelsMax = 16;
inline constexpr int kTileRowsMax = 6;  // rows whose sums are in registers at a time

// A task: rows of neighbouring panels.
struct PanelGroup {
  int64_t panel, panels;
  int64_t row, rows;
};

// What it does with one of the panels.
struct PanelTask {
  DType dtype, y_dtype;
  int64_t k;
  const void* panel;
  int64_t panel_elements;  // to the next panel
  const float* bias;       // 64 values, or null
  const std::byte* x;      // the task's first row
  int64_t x_stride;        // bytes
  int64_t rows;
  std::byte* y;      // the panel's first column in the task's first row
  int64_t y_stride;  // bytes
  int64_t columns;   // that exist of the panel's 64
  LinearEpilogue epilogue;
};

// For `rows` rows from `row` on.
PanelTask PanelTaskOf(const LinearArgs& args, int64_t panel, int64_t row, int64_t rows);

// Stores a task's FP32 sums, kPanelWidth a row: the bias, the epilogue and the rounding by vectors,
// for implementations that have no vector functions of their own.
void StorePanelRows(const PanelTask& task, const float* total);

// Hands out the tasks of the product; `run` does one of them.
void RunPanelGroups(const ExecutionContext& context, const LinearArgs& args,
                    void (*run)(const LinearArgs& args, const PanelGroup& group));

}  // namespace fuseblock
