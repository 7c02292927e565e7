// Rung 6 for products: what PyTorch computed (torch_products.py), stored with its inputs.
//
// Both results are within the bound of their roundings of the exact value, and ours is at most one
// output ULP further from it than PyTorch's. In 16 bits both round the same FP32 sum but for its
// last bits, so that they differ only where it lies that close to a tie, and then by one ULP.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/block/block.h"
#include "kernels/linear/linear.h"
#include "server/model/safetensors.h"
#include "tests/support/exact_mlp.h"
#include "tests/support/numerics_variants.h"
#include "tests/support/workspace.h"

namespace fuseblock::testing {
namespace {

constexpr char kFile[] = "tests/numerics/products/torch_products.safetensors";

class TorchProducts : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    auto file = SafetensorsFile::Open(kFile);
    ASSERT_TRUE(file.ok()) << file.status();
    file_.emplace(*std::move(file));
  }
  HostTensor Get(const std::string& name, const char* operand) const {
    const std::string full =
        absl::StrCat(name, ".", std::string(Traits(GetParam()).label), ".", operand);
    const absl::StatusOr<ConstTensorView> view = file_->Find(full);
    EXPECT_TRUE(view.ok()) << view.status();
    HostTensor tensor(view->dtype, {view->dims().begin(), view->dims().end()});
    std::memcpy(tensor.row(0), view->data,
                static_cast<size_t>(view->elements() * SizeOf(view->dtype)));
    return tensor;
  }

 private:
  std::optional<SafetensorsFile> file_;
};
INSTANTIATE_TEST_SUITE_P(DTypes, TorchProducts, ::testing::ValuesIn(kFloatDTypes),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

// The largest error of a result, in units of the output's last place at the exact value.
struct Errors {
  double ours = 0, torch = 0;
  int64_t differing = 0;
  double apart = 0;  // the largest distance between the two, in the same unit
};

void ExpectLikeTorch(const HostTensor& got, const HostTensor& torch,
                     const std::vector<std::vector<Bounded>>& exact, double near_ties,
                     const std::string& label) {
  Errors errors;
  for (int64_t m = 0; m < got.rows(); ++m) {
    for (int64_t n = 0; n < got.cols(); ++n) {
      const Bounded& want = exact[static_cast<size_t>(m)][static_cast<size_t>(n)];
      const double ulp = 2 * HalfSpacing(got.dtype(), want.value);
      EXPECT_LE(std::fabs(got.at(m, n) - want.value), want.error) << label << " " << m << ", " << n;
      errors.ours = std::max(errors.ours, std::fabs(got.at(m, n) - want.value) / ulp);
      errors.torch = std::max(errors.torch, std::fabs(torch.at(m, n) - want.value) / ulp);
      errors.apart = std::max(errors.apart, std::fabs(torch.at(m, n) - got.at(m, n)) / ulp);
      errors.differing += torch.at(m, n) != got.at(m, n);
    }
  }
  EXPECT_LE(errors.ours, errors.torch + 1) << label;
  if (got.dtype() != DType::kF32) {
    EXPECT_LE(static_cast<double>(errors.differing),
              1 + near_ties * static_cast<double>(got.rows() * got.cols()))
        << label;
  }
  ::testing::Test::RecordProperty(
      label, absl::StrCat("largest error ", errors.ours, " ULP, PyTorch's ", errors.torch,
                          ", apart ", errors.apart, " in ", errors.differing, " places"));
}

// How often two FP32 sums that differ by `roundings` units round to different 16-bit values: the
// sums' distance in units of the output, for values that are not much smaller than their terms.
double NearTies(DType dtype, double roundings) {
  return 4 * 2 * roundings * 0x1p-24 / (Traits(dtype).epsilon / 2);
}

TEST_P(TorchProducts, Linear) {
  for (const int64_t k : {1536, 129}) {
    const std::string name = absl::StrCat("linear_", k);
    const HostTensor x = Get(name, "x"), w = Get(name, "weight"), b = Get(name, "bias");
    for (const bool biased : {false, true}) {
      const HostTensor torch = Get(name, biased ? "y_bias" : "y");
      std::vector<std::vector<Bounded>> exact(static_cast<size_t>(x.rows()));
      for (int64_t m = 0; m < x.rows(); ++m) {
        for (int64_t n = 0; n < w.rows(); ++n) {
          Bounded sum = ExactProduct(w, n, ExactRow(x, m));
          if (biased) {
            sum.value += b.at(0, n);
            sum.error += 0x1p-24 * std::fabs(sum.value);
          }
          exact[static_cast<size_t>(m)].push_back(Stored(GetParam(), sum));
        }
      }
      std::optional<ConstTensorView> bias;
      if (biased) bias = b.view();
      const auto weight = LinearWeight::Prepare(Device(), w.view(), bias);
      ASSERT_TRUE(weight.ok());
      for (const Variant& variant : Variants(DescribeList(LinearImplementations()))) {
        if (variant.device != DeviceType::kCpu) continue;
        HostTensor y(GetParam(), {x.rows(), w.rows()});
        const auto args = CheckLinear(x.view(), *weight, y.view());
        ASSERT_TRUE(args.ok());
        const ScopedVariant scoped(variant);
        const absl::Status status =
            RunNamed(LinearImplementations(), variant.implementation, ExecutionContext(), *args);
        if (absl::IsUnimplemented(status)) continue;  // takes another dtype
        ASSERT_TRUE(status.ok()) << status;
        ExpectLikeTorch(y, torch, exact, NearTies(GetParam(), ProductRoundings(k)),
                        absl::StrCat(name, biased ? "_bias_" : "_", variant.label));
      }
    }
  }
}

TEST_P(TorchProducts, LlamaMlpInHf) {
  const HostTensor x = Get("mlp_hf", "x"), torch = Get("mlp_hf", "y");
  const HostTensor gate = Get("mlp_hf", "gate"), up = Get("mlp_hf", "up"),
                   down = Get("mlp_hf", "down");
  BlockSpec spec;
  spec.kind = BlockKind::kMlp;
  spec.dtype = GetParam();
  spec.hidden = x.cols();
  spec.intermediate = gate.rows();
  spec.rounding = Rounding::kHf;
  BlockWeights weights;
  weights.gate = gate.view();
  weights.up = up.view();
  weights.down = down.view();
  const auto block = Block::Create(spec, weights, Device());
  ASSERT_TRUE(block.ok()) << block.status();
  std::vector<std::vector<Bounded>> exact;
  for (int64_t m = 0; m < x.rows(); ++m) {
    exact.push_back(ExactMlp(gate, up, down, Rounding::kHf, ExactRow(x, m), GetParam()));
  }
  HostTensor y(GetParam(), {x.rows(), x.cols()});
  Workspace workspace((*block)->WorkspaceBytes(x.rows()));
  const ConstTensorView in = x.view();
  const TensorView out = y.view();
  ASSERT_TRUE((*block)->Run({}, {&in, 1}, {&out, 1}, workspace.span()).ok());
  // A difference inside, near a tie of one of the stored tensors, moves every output a little, so how
  // many outputs differ says nothing.
  ExpectLikeTorch(y, torch, exact, 1, "mlp_hf");
}

}  // namespace
}  // namespace fuseblock::testing
