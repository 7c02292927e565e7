// The embedding lookup: a copy, or one FP32 product.
#include "kernels/embedding/embedding.h"

#include "tests/numerics/cases/case_parts.h"

namespace fuseblock::testing {
namespace {

struct Mode {
  float scale;
  std::optional<int64_t> padding_id;
};
const Mode kModes[] = {
    {1.0f, std::nullopt}, {25.298221f, std::nullopt}, {1.0f, 3}, {25.298221f, 0}};

}  // namespace

std::vector<Case> EmbeddingCases() {
  std::vector<Case> cases;
  for (const DType dtype : kFloatDTypes) {
    for (const DType ids : {DType::kI32, DType::kI64}) {
      for (const auto& [scale, padding_id] : kModes) {
        Case c;
        c.name = absl::StrCat(Label(dtype), "_", Label(ids), scale == 1 ? "" : "_scaled",
                              padding_id ? "_padded" : "");
        c.inputs = {{"ids", ids, OperandKind::kIds}, {"table", dtype, OperandKind::kTable}};
        c.outputs = {{"y", dtype}};
        c.errors = {{Roundings(1), scale == 1 || dtype == DType::kF32}};
        c.run = [scale = scale, padding_id = padding_id](
                    const std::string& name, const ExecutionContext& context, Views in, Views out) {
          FUSEBLOCK_ASSIGN_OR_RETURN(const auto args,
                                     CheckEmbedding(in[0], in[1], scale, out[0], padding_id));
          return RunNamed(EmbeddingImplementations(), name, context, args);
        };
        cases.push_back(std::move(c));
      }
    }
  }
  return cases;
}

}  // namespace fuseblock::testing
