// The residual addition: one FP32 addition.
#include "kernels/add_residual/add_residual.h"

#include "tests/numerics/cases/case_parts.h"

namespace fuseblock::testing {
std::vector<Case> AddResidualCases() {
  std::vector<Case> cases;
  for (const DType z : kFloatDTypes) {
    for (const DType x : WithFp32(z)) {
      for (const DType r : WithFp32(z)) {
        Case c;
        c.name = absl::StrCat(Label(x), "_", Label(r), "_to_", Label(z));
        c.inputs = {{"x", x}, {"r", r}};
        c.outputs = {{"z", z}};
        c.errors = {{Roundings(1), z == DType::kF32}};
        if (x == z) c.in_place.push_back({0});
        if (r == z) c.in_place.push_back({1});
        c.run = [](const std::string& name, const ExecutionContext& context, Views in, Views out) {
          FUSEBLOCK_ASSIGN_OR_RETURN(const auto args, CheckAddResidual(in[0], in[1], out[0]));
          return RunNamed(AddResidualImplementations(), name, context, args);
        };
        cases.push_back(std::move(c));
      }
    }
  }
  return cases;
}

}  // namespace fuseblock::testing
