// Cuts the work of a memory-bound kernel into tasks for the caller's threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/base/context.h"
#include "kernels/base/tensor_view.h"

namespace fuseblock {

// A task smaller than this costs more to hand over than to do.
inline constexpr int64_t kTaskBytesMin = 128 << 10;
// More tasks than threads, so that a slow thread does not hold up the rest.
inline constexpr int64_t kTasksPerThreadMax = 4;

// What an element counts for where more than an addition is done to it in so many operands:
// rounding and functions take as long for 16 bits as for FP32.
constexpr int64_t ComputedBytes(int64_t operands) {
  return operands * static_cast<int64_t>(sizeof(float));
}

// Calls body(begin, end) for ranges that cover [0, units), each once; `unit_bytes` are the bytes
// that one unit reads and writes, or ComputedBytes.
inline void ForRanges(const ParallelFor& parallel_for, int64_t units, int64_t unit_bytes,
                      absl::FunctionRef<void(int64_t, int64_t)> body) {
  if (units <= 0) return;
  const int64_t task_units_min =
      std::max<int64_t>(1, kTaskBytesMin / std::max<int64_t>(1, unit_bytes));
  int64_t tasks = std::min(units / task_units_min, parallel_for.threads * kTasksPerThreadMax);
  if (tasks > parallel_for.threads) tasks -= tasks % parallel_for.threads;  // the same for each
  if (tasks <= 1 || parallel_for.threads <= 1) return body(0, units);
  const int64_t per_task = units / tasks;
  const int64_t longer = units % tasks;  // the first tasks take one unit more
  parallel_for(tasks, [&](int64_t task) {
    const int64_t begin = task * per_task + std::min(task, longer);
    body(begin, begin + per_task + (task < longer ? 1 : 0));
  });
}

// Rows [begin, end) of `rows`.
template <typename Void>
BasicRows<Void> RowRange(BasicRows<Void> rows, DType dtype, int64_t begin, int64_t end) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
  rows.data = static_cast<Byte*>(rows.data) + begin * rows.stride * SizeOf(dtype);
  rows.rows = end - begin;
  return rows;
}

// How a kernel that takes each element on its own cuts its operands: by rows, or when all of them
// are dense by runs of elements, so that neither one long row nor many short ones are a special
// case.
struct ElementSplit {
  static constexpr int64_t kRun = 1024;  // elements of a dense unit

  bool dense;
  int64_t rows, cols;

  // The output's shape, and all operands' strides.
  template <typename... Operands>
  static ElementSplit Of(const Rows& output, const Operands&... inputs) {
    const auto is_dense = [](const auto& operand) {
      return operand.rows <= 1 || operand.stride == operand.cols;
    };
    return {is_dense(output) && (is_dense(inputs) && ...), output.rows, output.cols};
  }

  int64_t units() const { return dense ? (rows * cols + kRun - 1) / kRun : rows; }
  int64_t unit_elements() const { return dense ? kRun : cols; }

  template <typename Void>
  BasicRows<Void> Part(const BasicRows<Void>& operand, DType dtype, int64_t begin,
                       int64_t end) const {
    if (!dense) return RowRange(operand, dtype, begin, end);
    const int64_t elements = std::min(end * kRun, rows * cols) - begin * kRun;
    BasicRows<Void> run{operand.data, 1, 1, 1};
    run = RowRange(run, dtype, begin * kRun, begin * kRun + 1);
    run.cols = run.stride = elements;
    return run;
  }
};

// Calls rows(part) for parts of an element-wise kernel's arguments that cover all elements, each
// once. Operands: the members of Args that hold an operand's rows and their dtype, the output's
// first. `element_bytes`: what an element reads and writes, or ComputedBytes.
template <typename Args, typename RowsOf, typename... Operands>
void ForElements(const ParallelFor& parallel_for, const Args& args, int64_t element_bytes,
                 const RowsOf& rows, std::pair<Operands Args::*, DType Args::*>... operands) {
  const auto split = ElementSplit::Of(args.*operands.first...);
  ForRanges(parallel_for, split.units(), split.unit_elements() * element_bytes,
            [&](int64_t begin, int64_t end) {
              Args part = args;
              ((part.*operands.first =
                    split.Part(args.*operands.first, args.*operands.second, begin, end)),
               ...);
              rows(part);
            });
}

}  // namespace fuseblock
