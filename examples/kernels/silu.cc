// Calls one kernel as a user of the library does: views over memory that the caller owns, an error
// that says what was expected.
#include "kernels/silu/silu.h"

#include <cstdio>
#include <vector>

int main() {
  const std::vector<float> x = {-1, 0, 1, 2};
  std::vector<float> y(x.size());
  const fuseblock::ConstTensorView in(x.data(), fuseblock::DType::kF32, {2, 2});
  const fuseblock::TensorView out(y.data(), fuseblock::DType::kF32, {2, 2});
  if (const absl::Status status = fuseblock::Silu({}, in, out); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  for (size_t i = 0; i < x.size(); ++i) std::printf("silu(%g) = %.6f\n", x[i], y[i]);

  const fuseblock::TensorView narrow(y.data(), fuseblock::DType::kF32, {2, 1});
  std::printf("%s\n", fuseblock::Silu({}, in, narrow).ToString().c_str());
  return 0;
}
