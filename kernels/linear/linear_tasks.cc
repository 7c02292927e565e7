#include "kernels/linear/linear_tasks.h"

#include <algorithm>

#include "kernels/base/ceil_div.h"
#include "kernels/linear/linear_packed.h"

namespace fuseblock {
namespace {

// Fewer tasks than this for each thread are cut smaller: a slow thread then holds up less.
constexpr int64_t kTasksPerThread = 4;
constexpr int64_t kTaskRowsMin = 2 * kTileRowsMax;  // for which a panel is still worth reading

// Rows of a task, for at least so many tasks if they do not become too small. Tiles are full
// wherever they can be.
int64_t RowsPerTask(int64_t rows, int64_t tasks) {
  const int64_t fewest = CeilDiv(rows, kTaskRowsMax);
  const int64_t most = std::max(fewest, rows / kTaskRowsMin);
  const int64_t per_task = CeilDiv(rows, std::clamp(tasks, fewest, most));
  return std::min(kTaskRowsMax, CeilDiv(per_task, kTileRowsMax) * kTileRowsMax);
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
  task.panel_elements = PanelElements(packed.dtype, packed.k);
  task.panel = packed.weight.data() + panel * task.panel_elements * size;
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

void RunPanelGroups(const ExecutionContext& context, const LinearArgs& args,
                    void (*run)(const LinearArgs& args, const PanelGroup& group)) {
  const int64_t panels = PanelCount(args.weight->packed().n);
  const int64_t rows = args.x.rows;
  const int64_t threads = context.parallel_for.threads;
  const int64_t enough = threads > 1 ? threads * kTasksPerThread : 1;
  const int64_t per_group = std::clamp<int64_t>(panels / enough, 1, kGroupPanelsMax);
  const int64_t groups = CeilDiv(panels, per_group);
  const int64_t per_task = RowsPerTask(rows, CeilDiv(enough, groups));
  const int64_t chunks = CeilDiv(rows, per_task);
  // A panel's tasks follow one another: it is read from memory once.
  context.parallel_for(groups * chunks, [&](int64_t index) {
    const int64_t panel = index / chunks * per_group;
    const int64_t row = index % chunks * per_task;
    run(args, {panel, std::min(per_group, panels - panel), row, std::min(per_task, rows - row)});
  });
}

}  // namespace fuseblock
