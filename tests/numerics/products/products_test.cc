// Rung 6 for products: what PyTorch computed (torch_products.py), stored with its inputs.
//
// The error of a sum is measured against eps * sum |w||x|, so that cancellation does not blow it
// up. Ours is within the bound of its roundings and at most one such unit larger than PyTorch's;
// both are recorded. In 16 bits both round the same sum but for FP32's last bits, so that few
// results differ.
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

void ExpectLikeTorch(const HostTensor& got, const HostTensor& torch,
                     const std::vector<std::vector<Bounded>>& exact, double near_ties,
                     const std::string& label) {
  double ours = 0, theirs = 0;
  int64_t differing = 0;
  for (int64_t m = 0; m < got.rows(); ++m) {
    for (int64_t n = 0; n < got.cols(); ++n) {
      const Bounded& want = exact[static_cast<size_t>(m)][static_cast<size_t>(n)];
      const double unit = Traits(got.dtype()).epsilon * want.norm;
      const double error = std::fabs(got.at(m, n) - want.value);
      EXPECT_LE(error, want.error) << label << " " << m << ", " << n;
      ours = std::max(ours, error / unit);
      theirs = std::max(theirs, std::fabs(torch.at(m, n) - want.value) / unit);
      differing += torch.at(m, n) != got.at(m, n);
    }
  }
  EXPECT_LE(ours, theirs + 1) << label;
  if (got.dtype() != DType::kF32) {
    EXPECT_LE(static_cast<double>(differing),
              1 + near_ties * static_cast<double>(got.rows() * got.cols()))
        << label;
  }
  ::testing::Test::RecordProperty(label, absl::StrCat("largest error ", ours, ", PyTorch's ",
                                                      theirs, "; ", differing, " differ"));
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
            sum.norm += std::fabs(b.at(0, n));
            sum.error += 0x1p-24 * sum.norm;
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
    exact.push_back(ExactMlp({FeedForwardForm::kSwiGlu, &gate, &up, &down}, Rounding::kHf,
                             ExactRow(x, m), GetParam()));
  }
  HostTensor y(GetParam(), {x.rows(), x.cols()});
  Workspace workspace((*block)->WorkspaceBytes(x.rows()));
  const ConstTensorView in = x.view();
  const TensorView out = y.view();
  ASSERT_TRUE((*block)->Run({}, {&in, 1}, {&out, 1}, workspace.span()).ok());
  // A difference inside, near a tie of one of the stored tensors, moves every output a little, so
  // how many outputs differ says nothing.
  ExpectLikeTorch(y, torch, exact, 1, "mlp_hf");
}

}  // namespace
}  // namespace fuseblock::testing
