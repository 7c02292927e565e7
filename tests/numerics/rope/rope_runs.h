// Runs the rotary position embedding on tensors whose rows are tokens with all their heads, on any
// implementation, wherever it runs.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "kernels/base/status.h"
#include "kernels/rope/rope.h"
#include "tests/support/numerics_compare.h"
#include "tests/support/numerics_place.h"
#include "tests/support/numerics_values.h"
#include "tests/support/numerics_variants.h"

namespace fuseblock::testing {

inline std::vector<Variant> RopeVariants() { return Variants(DescribeList(RopeImplementations())); }

inline Tensor PositionsOf(const std::vector<int64_t>& positions) {
  Tensor tensor(DType::kI64, static_cast<int64_t>(positions.size()), 1);
  for (size_t i = 0; i < positions.size(); ++i) {
    tensor.Set(static_cast<int64_t>(i), 0, static_cast<double>(positions[i]));
  }
  return tensor;
}

// A row: q's heads, k's heads, then columns that nobody turns (v).
struct Packing {
  int64_t heads, kv_heads, head_dim;
  int64_t q_columns() const { return heads * head_dim; }
  int64_t k_columns() const { return kv_heads * head_dim; }
};

// `heads` heads of every row from `column` on.
inline TensorView HeadsAt(const TensorView& rows, int64_t column, int64_t heads, int64_t head_dim) {
  TensorView view(static_cast<std::byte*>(rows.data) + column * SizeOf(rows.dtype), rows.dtype,
                  {rows.shape[0], heads, head_dim}, rows.device);
  view.stride[0] = rows.stride[0];
  return view;
}

struct RopeSetup {
  RopeParams params;
  RopePairs pairs = RopePairs::kHalves;
};

// Turns q's and k's heads of `from`'s rows into the same columns of `to`, which may be `from`.
inline void RunRope(const Variant& variant, const RopeSetup& setup, Tensor& positions,
                    const Packing& packing, Tensor& from, Tensor& to) {
  const ScopedVariant scoped(variant);
  const absl::Status status = RunPlaced(
      variant.device, {{&positions, Shape::kVector}, {&from}, {&to}}, {},
      [&](const ExecutionContext& context, absl::Span<const TensorView> views) -> absl::Status {
        FUSEBLOCK_ASSIGN_OR_RETURN(const RopeTable table,
                                   RopeTable::Make(context.device, setup.params));
        const auto operand = [&](int64_t column, int64_t heads) {
          return RopeOperand{HeadsAt(views[1], column, heads, packing.head_dim),
                             HeadsAt(views[2], column, heads, packing.head_dim)};
        };
        std::optional<RopeOperand> k;
        if (packing.kv_heads > 0) k = operand(packing.q_columns(), packing.kv_heads);
        FUSEBLOCK_ASSIGN_OR_RETURN(const RopeArgs args, CheckRope(table, setup.pairs, views[0],
                                                                  operand(0, packing.heads), k));
        return RunNamed(RopeImplementations(), variant.implementation, context, args);
      });
  ASSERT_TRUE(status.ok()) << variant.label << ": " << status;
  EXPECT_TRUE(to.GuardsIntact()) << variant.label << " writes beyond its operand";
}

inline Tensor Turned(const Variant& variant, const RopeSetup& setup, Tensor& positions,
                     const Packing& packing, Tensor& from) {
  Tensor to = from.Copy();
  RunRope(variant, setup, positions, packing, from, to);
  return to;
}

}  // namespace fuseblock::testing
