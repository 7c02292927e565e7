// The cases that kernels y = f(x) have in common.
#include "kernels/base/unary.h"

#include "tests/numerics/cases/case_parts.h"

namespace fuseblock::testing {

std::vector<Case> UnaryCases(absl::Span<const Implementation<UnaryArgs>> list,
                             double (*roundings)(DType out)) {
  std::vector<Case> cases;
  for (const DType y : kFloatDTypes) {
    for (const DType x : WithFp32(y)) {
      Case c;
      c.name = absl::StrCat(Label(x), "_to_", Label(y));
      c.inputs = {{"x", x}};
      c.outputs = {{"y", y}};
      c.errors = {{Roundings(roundings(y))}};
      if (x == y) c.in_place.push_back({0});
      c.run = [list](const std::string& name, const ExecutionContext& context, Views in,
                     Views out) {
        FUSEBLOCK_ASSIGN_OR_RETURN(const auto args, CheckUnary(in[0], out[0]));
        return RunNamed(list, name, context, args);
      };
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

}  // namespace fuseblock::testing
