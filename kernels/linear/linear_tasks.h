// How a product on the CPU is cut into tasks: private to linear/. A task makes up to 36 rows of one
// panel's 64 outputs.
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

inline constexpr int64_t kSegment = 64;      // of K; even, since BF16 lies in pairs
inline constexpr int64_t kTaskRowsMax = 36;  // what a task stages then stays in the L1 cache
inline constexpr int kTileRowsMax = 6;       // rows whose sums are in registers at a time

struct PanelTask {
  DType dtype, y_dtype;
  int64_t k;
  const void* panel;
  const float* bias;   // 64 values, or null
  const std::byte* x;  // the task's first row
  int64_t x_stride;    // bytes
  int64_t rows;        // <= kTaskRowsMax where RunPanelTasks hands it out
  std::byte* y;        // the panel's first column in the task's first row
  int64_t y_stride;    // bytes
  int64_t columns;     // that exist of the panel's 64
  LinearEpilogue epilogue;
};

// The task of `rows` rows from `row` on and that panel.
PanelTask PanelTaskOf(const LinearArgs& args, int64_t panel, int64_t row, int64_t rows);

// Stores a task's FP32 sums, kPanelWidth a row: the bias, the epilogue and the rounding by vectors,
// for implementations that have no vector functions of their own.
void StorePanelRows(const PanelTask& task, const float* total);

// Hands out the tasks of the product; `run` does one of them.
void RunPanelTasks(const ExecutionContext& context, const LinearArgs& args,
                   void (*run)(const PanelTask& task));

}  // namespace fuseblock
