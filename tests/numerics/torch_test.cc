// Rung 6 of the numerical ladder: values that PyTorch and transformers' eager code produced
// (torch_values.py), stored with their inputs.
//
// Where no reduction's order can differ, the bits must be theirs: additions, lookups, and with kHf
// rounding the gate. silu's exponential is not correctly rounded by anybody, so FP32 is held to the
// sum of both errors. A norm's sum of squares may be added in another order, which moves a 16-bit
// result by at most one last place, and only where it lies that close to a tie.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "kernels/base/status.h"
#include "kernels/causal_softmax/causal_softmax.h"
#include "kernels/embedding/embedding.h"
#include "nlohmann/json.hpp"
#include "tests/numerics/cases.h"

namespace fuseblock::testing {
namespace {

class Stored {
 public:
  // group: "" or "_gelu", the end of the file's name.
  explicit Stored(const std::string& group = "") {
    std::ifstream file(absl::StrCat("tests/numerics/torch_values", group, ".safetensors"),
                       std::ios::binary);
    uint64_t length = 0;
    file.read(reinterpret_cast<char*>(&length), sizeof length);
    std::string header(file ? length : 0, ' ');
    file.read(header.data(), static_cast<std::streamsize>(header.size()));
    header_ = nlohmann::json::parse(header.empty() ? "{}" : header);
    std::ostringstream rest;
    rest << file.rdbuf();
    data_ = rest.str();
  }

  // "torch 2.12.1, transformers 5.23.0, seed 20240607", for messages.
  std::string Source() const { return header_.at("__metadata__").at("source").get<std::string>(); }

  Tensor Get(const std::string& name) const {
    const auto& entry = header_.at(name);
    const DType dtype = *DTypeFromSafetensors(entry.at("dtype").get<std::string>());
    const auto shape = entry.at("shape").get<std::vector<int64_t>>();
    // Vectors are one row, ids one column.
    const bool ids = dtype == DType::kI64;
    const int64_t columns = ids ? 1 : shape.back();
    Tensor tensor(dtype, shape.size() == 2 || ids ? shape[0] : 1, columns);
    const auto begin = entry.at("data_offsets").at(0).get<size_t>();
    std::copy_n(reinterpret_cast<const std::byte*>(data_.data()) + begin, tensor.memory_bytes(),
                tensor.memory());
    return tensor;
  }

 private:
  nlohmann::json header_;
  std::string data_;
};

enum class Agreement {
  kBits,         // the same bits
  kExponential,  // 16-bit: the same bits; FP32: both sides' error
  kReduction,    // 16-bit: the same but for rare single last places; FP32: both sides' bound
  kTail,         // 1 + erf and 1 + tanh cancel in theirs: an absolute error of |x| 2^-24 and more
};

struct TorchCase {
  std::string stored;  // without ".bf16.x"
  const char* kernel;
  std::string of;  // the case in cases.h, with DT for the dtype's label
  Agreement agreement;
  std::string group = "";  // the file that it is in
};

std::vector<TorchCase> TorchCases() {
  std::vector<TorchCase> cases = {
      {"add_residual", "add_residual", "DT_DT_to_DT", Agreement::kBits},
      {"silu", "silu", "DT_to_DT", Agreement::kExponential},
      {"swiglu_hf", "swiglu", "DT_to_DT_hf", Agreement::kExponential},
      {"erf", "gelu_erf", "DT_to_DT", Agreement::kTail, "_gelu"},
      {"tanh", "gelu_tanh", "DT_to_DT", Agreement::kTail, "_gelu"},
      {"clamped", "swiglu_clamped", "DT_to_DT", Agreement::kReduction, "_swiglu_clamped"}};
  for (const char* columns : {"_7", "_32", "_300"}) {
    for (const char* op : {"sum", "max"}) {
      for (const char* kernel : {"warp_reduce", "block_reduce"}) {
        cases.push_back({absl::StrCat(op, columns), kernel, absl::StrCat(op, "_DT_to_DT"),
                         Agreement::kBits, "_reduce"});
      }
    }
  }
  for (const char* columns : {"_65", "_576"}) {
    for (const char* mode : {"first", "once", "offset"}) {
      cases.push_back({absl::StrCat("rms_norm_", mode, columns), "rms_norm",
                       absl::StrCat("DT_to_DT_wDT_", mode), Agreement::kReduction});
    }
    cases.push_back({absl::StrCat("add_rms_norm_first_hf", columns), "add_rms_norm",
                     "DT_wDT_hDT_first_hf", Agreement::kReduction});
    cases.push_back({absl::StrCat("layer_norm", columns), "layer_norm", "DT_to_DT_wDT_b",
                     Agreement::kReduction, "_rows"});
    cases.push_back(
        {absl::StrCat("softmax", columns), "softmax", "DT_to_DT", Agreement::kReduction, "_rows"});
    cases.push_back({absl::StrCat("softmax_masked", columns), "softmax_masked", "DT_to_DT_mDT",
                     Agreement::kReduction, "_rows"});
  }
  return cases;
}

// Two results, each within the error's roundings in units of 2^-24 of the exact value, in an
// output's last places.
void ExpectAgreement(Agreement agreement, const OutputError& error,
                     const std::vector<Tensor>& inputs, const Tensor& torch, const Tensor& got,
                     const std::string& where) {
  const double roundings = error.fp32_roundings(got.columns());
  Bound bound;
  if (error.magnitudes) bound.magnitude = error.magnitudes(inputs);
  if (agreement == Agreement::kBits ||
      (agreement == Agreement::kExponential && got.dtype() != DType::kF32)) {
    bound.bit_exact = true;
  } else {
    bound.fp32_roundings = 2 * roundings;
  }
  const Comparison comparison = Compare(torch, got, bound);
  EXPECT_TRUE(comparison.within) << where << ": " << comparison.message;
  if (agreement == Agreement::kReduction && got.dtype() != DType::kF32) {
    const double near_tie =
        4 * 2 * roundings * kUnitRoundoffFp32 / (Traits(got.dtype()).epsilon / 2);
    EXPECT_LE(comparison.differing, 1 + near_tie * static_cast<double>(got.rows() * got.columns()))
        << where;
  }
}

// gelu: theirs is 0.5 x (1 + erf or tanh), whose function is within 1.5e-7 (2.5 units of 2^-24) and
// whose sum and argument are rounded: 4 units of |x|. Ours is within 2^-17 of the value where the
// dtype has 16 bits and 2^-20 in FP32, and both may have been rounded either way.
void ExpectTailAgreement(const Tensor& x, const Tensor& torch, const Tensor& got,
                         const std::string& where) {
  const double relative = got.dtype() == DType::kF32 ? 0x1p-20 : 0x1p-17;
  for (int64_t row = 0; row < got.rows(); ++row) {
    for (int64_t i = 0; i < got.columns(); ++i) {
      const double want = torch.At(row, i);
      const double allowed = 4 * kUnitRoundoffFp32 * std::abs(x.At(row, i)) +
                             relative * std::abs(want) + Spacing(got.dtype(), want);
      EXPECT_NEAR(got.At(row, i), want, allowed) << where << ", x " << x.At(row, i);
    }
  }
}

// One of TorchCases() in one dtype, with the case of cases.h that it is.
struct StoredCase {
  const TorchCase* torch;
  const Case* c;
  const Stored* stored;
  std::vector<Variant> variants;
  std::string name;  // "swiglu bf16_to_bf16_hf"
  std::string label;

  Tensor Get(const char* operand) const {
    return stored->Get(absl::StrCat(torch->stored, ".", label, ".", operand));
  }
  std::vector<Tensor> Inputs() const {
    std::vector<Tensor> inputs;
    for (const Operand& operand : c->inputs) inputs.push_back(Get(operand.name));
    return inputs;
  }
};

void ForEachStored(const std::function<void(const StoredCase&)>& body) {
  const std::vector<TorchCase> all = TorchCases();
  std::map<std::string, Stored> groups;
  for (const TorchCase& torch : all) {
    const Stored& stored = groups.try_emplace(torch.group, torch.group).first->second;
    for (const DType dtype : kFloatDTypes) {
      const std::string label(Traits(dtype).label);
      const std::string of = absl::StrReplaceAll(torch.of, {{"DT", label}});
      bool found = false;
      for (const KernelUnderTest& kernel : KernelsUnderTest()) {
        if (std::string(kernel.name) != torch.kernel) continue;
        for (const Case& c : kernel.cases()) {
          if (c.name != of) continue;
          found = true;
          body({&torch, &c, &stored, Variants(kernel.implementations()),
                absl::StrCat(torch.kernel, " ", of), label});
        }
      }
      EXPECT_TRUE(found) << "no case " << torch.kernel << " " << of;
    }
  }
}

double WorstUlp(const OutputError& error, const Tensor& exact, const Tensor& got) {
  if (error.cancels) {
    double worst = 0;
    for (int64_t row = 0; row < got.rows(); ++row) {
      double largest = 0, difference = 0;
      for (int64_t i = 0; i < got.columns(); ++i) {
        largest = std::max(largest, std::abs(exact.At(row, i)));
        difference = std::max(difference, std::abs(got.At(row, i) - exact.At(row, i)));
      }
      worst = std::max(worst, difference / Spacing(got.dtype(), largest));
    }
    return worst;
  }
  Bound anything;
  anything.fp32_roundings = 1e30;
  return Compare(exact, got, anything).worst_ulp;
}

TEST(Torch, StoredValuesAreReproduced) {
  ForEachStored([&](const StoredCase& one) {
    std::vector<Tensor> inputs = one.Inputs();
    for (const Variant& variant : one.variants) {
      const std::vector<Tensor> got = RunCase(*one.c, variant, inputs);
      if (one.torch->agreement == Agreement::kTail) {
        ExpectTailAgreement(inputs[0], one.Get(one.c->outputs[0].name), got[0],
                            absl::StrCat(one.name, " on ", variant.label));
        continue;
      }
      for (size_t i = 0; i < got.size(); ++i) {
        const bool sum = i > 0;  // residual_out: an addition
        ExpectAgreement(sum ? Agreement::kBits : one.torch->agreement, one.c->errors[i], inputs,
                        one.Get(one.c->outputs[i].name), got[i],
                        absl::StrCat(one.name, " on ", variant.label, ", ", one.stored->Source()));
      }
    }
  });
}

// The contract's measure: against FP64 the error is at most one ULP larger than PyTorch's on the
// same inputs. What was measured goes to the test's XML output.
TEST(Torch, ErrorsAreNoLargerThanPyTorchs) {
  ForEachStored([&](const StoredCase& one) {
    std::vector<Tensor> inputs = one.Inputs();
    const std::vector<Tensor> exact = Expected(*one.c, inputs);
    for (size_t i = 0; i < exact.size(); ++i) {
      const double theirs = WorstUlp(one.c->errors[i], exact[i], one.Get(one.c->outputs[i].name));
      for (const Variant& variant : one.variants) {
        if (variant.implementation == "reference") continue;
        const double ours =
            WorstUlp(one.c->errors[i], exact[i], RunCase(*one.c, variant, inputs)[i]);
        EXPECT_LE(ours, theirs + 1) << one.name << " on " << variant.label;
        RecordProperty(absl::StrCat(one.name, " ", one.c->outputs[i].name, " ", variant.label),
                       absl::StrCat(ours, " ULP, PyTorch ", theirs));
      }
    }
  });
}

// Gemma's lookup: the factor stored in the dtype, the product rounded to it.
TEST(Torch, ScaledEmbedding) {
  const Stored stored;
  for (const DType dtype : kFloatDTypes) {
    const auto get = [&](const char* operand) {
      return stored.Get(
          absl::StrCat("embedding_scaled.", std::string(Traits(dtype).label), ".", operand));
    };
    Tensor ids = get("ids"), table = get("table"), want = get("y");
    const float scale = static_cast<float>(get("scale").At(0, 0));
    for (const Variant& variant : Variants(DescribeList(EmbeddingImplementations()))) {
      Tensor y(dtype, want.rows(), want.columns());
      const ScopedVariant scoped(variant);
      const absl::Status status = RunPlaced(
          variant.device, {{&ids, Shape::kVector}, {&table}, {&y}}, {},
          [&](const ExecutionContext& context, absl::Span<const TensorView> views) -> absl::Status {
            FUSEBLOCK_ASSIGN_OR_RETURN(const auto args,
                                       CheckEmbedding(views[0], views[1], scale, views[2]));
            return RunNamed(EmbeddingImplementations(), variant.implementation, context, args);
          });
      ASSERT_TRUE(status.ok()) << variant.label << ": " << status;
      EXPECT_EQ(FirstDifference(want, y), "") << variant.label << ", " << stored.Source();
    }
  }
}

// The masks of attention: scores plus -inf, softmax in FP32, stored in the dtype.
TEST(Torch, CausalSoftmax) {
  const Stored stored("_causal");
  for (const DType dtype : kFloatDTypes) {
    for (const char* shape : {"33x33", "5x70", "1x17"}) {
      const auto get = [&](const char* operand) {
        return stored.Get(absl::StrCat(shape, ".", std::string(Traits(dtype).label), ".", operand));
      };
      Tensor x = get("x");
      const Tensor want = get("y");
      for (const Variant& variant : Variants(DescribeList(CausalSoftmaxImplementations()))) {
        Tensor y(dtype, want.rows(), want.columns());
        const ScopedVariant scoped(variant);
        const absl::Status status =
            RunPlaced(variant.device, {{&x}, {&y}}, {},
                      [&](const ExecutionContext& context,
                          absl::Span<const TensorView> views) -> absl::Status {
                        FUSEBLOCK_ASSIGN_OR_RETURN(const auto args,
                                                   CheckCausalSoftmax(views[0], 1.0f, views[1]));
                        return RunNamed(CausalSoftmaxImplementations(), variant.implementation,
                                        context, args);
                      });
        ASSERT_TRUE(status.ok()) << variant.label << ": " << status;
        // Scores of N(0, 9) differ by 32 at most: see CausalSoftmaxRoundings; and theirs.
        OutputError error;
        error.fp32_roundings = [](int64_t) { return 3 * 32 + 44 + 48; };
        ExpectAgreement(Agreement::kReduction, error, {}, want, y,
                        absl::StrCat(shape, " on ", variant.label, ", ", stored.Source()));
      }
    }
  }
}

}  // namespace
}  // namespace fuseblock::testing
