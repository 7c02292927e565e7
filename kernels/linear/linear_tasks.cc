#include "kernels/linear/linear_tasks.h"

#include <algorithm>

#include "kernels/linear/linear_packed.h"

namespace fuseblock {
namespace {

// Fewer tasks than this for each thread are cut smaller: a slow thread then holds up less.
constexpr int64_t kTasksPerThread = 4;

// A multiple of the tile, so that a tile is full wherever it can be.
int64_t RowsPerTask(int64_t rows, int64_t panels, int threads) {
  constexpr int64_t kStep = 2 * kTileRowsMax;
  int64_t per_task = kTaskRowsMax;
  while (per_task > kStep && threads > 1 &&
         panels * ((rows + per_task - 1) / per_task) < kTasksPerThread * threads) {
    per_task -= kStep;
  }
  return per_task;
}

}  // namespace

PanelTask PanelTaskOf(const LinearArgs& args, int64_t panel, int64_t row, int64_t rows) {
  const LinearWeight::Packed& packed = args.weight->packed();
  const int64_t size = SizeOf(packed.dtype);
  const int64_t y_size = SizeOf(args.y_dtype);
  const int64_t column = panel * kPanelWidth;
  PanelTask task;
  task.dtype = packed.dtype;
  task.y_dtype = args.y_dtype;
  task.k = packed.k;
  task.panel = packed.weight.data() + panel * PanelElements(packed.dtype, packed.k) * size;
  task.bias = packed.bias.size() == 0 ? nullptr : packed.bias_data() + column;
  task.x_stride = args.x.stride * size;
  task.x = static_cast<const std::byte*>(args.x.data) + row * task.x_stride;
  task.rows = rows;
  task.y_stride = args.y.stride * y_size;
  task.y = static_cast<std::byte*>(args.y.data) + row * task.y_stride + column * y_size;
  task.columns = std::min(kPanelWidth, packed.n - column);
  task.epilogue = args.epilogue;
  return task;
}

void RunPanelTasks(const ExecutionContext& context, const LinearArgs& args,
                   void (*run)(const PanelTask& task)) {
  const LinearWeight::Packed& packed = args.weight->packed();
  const int64_t panels = PanelCount(packed.n);
  const int64_t rows = args.x.rows;
  const int64_t per_task = RowsPerTask(rows, panels, context.parallel_for.threads);
  const int64_t chunks = (rows + per_task - 1) / per_task;
  // A panel's tasks follow one another: it is read from memory once.
  context.parallel_for(panels * chunks, [&](int64_t index) {
    const int64_t panel = index / chunks;
    const int64_t row = index % chunks * per_task;
    run(PanelTaskOf(args, panel, row, std::min(per_task, rows - row)));
  });
}

}  // namespace fuseblock
