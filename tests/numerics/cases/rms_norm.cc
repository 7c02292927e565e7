// RMSNorm, alone and after an addition.
#include "kernels/rms_norm/rms_norm.h"

#include "kernels/add_rms_norm/add_rms_norm.h"
#include "tests/numerics/cases/case_parts.h"

namespace fuseblock::testing {
namespace {

// In units of 2^-24: a sum of H squares, all terms of one sign, so its relative error is the
// longest chain's length, one more for the square; the mean and eps add one each; the root halves
// all of that. Then the root, its reciprocal, x times it, weight plus offset and the product: one
// each. (A mean by the reciprocal of H has one more, which the root halves, and 1 / sqrt within 1
// ulp has two, as many as root and reciprocal.)
double RmsRoundings(int64_t columns) { return (SumChain(columns) + 4) / 2 + 5; }
// The magnitude whose squares, 262,144 of them summed, stay in FP32's range.
constexpr double kSquareMax = 1e16;
constexpr double kWeightMax = 16;

struct NormMode {
  std::string name;
  RmsNormParams params;
};

std::vector<NormMode> NormModes(bool weighted) {
  std::vector<NormMode> modes = {{"once", {1e-6f, 0, RmsNormForm::kOnce}},
                                 {"first", {1e-5f, 0, RmsNormForm::kNormalisedFirst}}};
  if (weighted) modes.push_back({"offset", {1e-6f, 1, RmsNormForm::kOnce}});
  return modes;
}

// "": no weight.
struct NormWeight {
  std::string name;
  std::optional<DType> dtype;
};

std::vector<NormWeight> NormWeights(DType dtype) {
  std::vector<NormWeight> weights = {{"", std::nullopt}};
  for (const DType w : WithFp32(dtype)) weights.push_back({absl::StrCat("_w", Label(w)), w});
  return weights;
}

std::optional<ConstTensorView> OptionalView(Views views, size_t index) {
  if (index >= views.size()) return std::nullopt;
  return ConstTensorView(views[index]);
}

// The error of a norm whose weight, if any, is input `weight`.
OutputError NormError(DType out, const RmsNormParams& params, double more, int weight) {
  OutputError error;
  error.fp32_roundings = [more](int64_t columns) { return RmsRoundings(columns) + more; };
  error.rounds_intermediate = params.form == RmsNormForm::kNormalisedFirst && out != DType::kF32;
  error.factor = [weight, offset = params.weight_offset](const std::vector<Tensor>& inputs, int64_t,
                                                         int64_t column) {
    return weight < 0 ? 1.0 : inputs[static_cast<size_t>(weight)].At(0, column) + offset;
  };
  return error;
}

}  // namespace

std::vector<Case> RmsNormCases() {
  std::vector<Case> cases;
  for (const DType y : kFloatDTypes) {
    for (const DType x : WithFp32(y)) {
      for (const NormWeight& weight : NormWeights(y)) {
        for (const NormMode& mode : NormModes(weight.dtype.has_value())) {
          Case c;
          c.name = absl::StrCat(Label(x), "_to_", Label(y), weight.name, "_", mode.name);
          c.inputs = {{"x", x, OperandKind::kRows, kSquareMax}};
          if (weight.dtype) {
            c.inputs.push_back({"weight", *weight.dtype, OperandKind::kVector, kWeightMax});
          }
          c.outputs = {{"y", y}};
          c.errors = {NormError(y, mode.params, 0, weight.dtype ? 1 : -1)};
          if (x == y) c.in_place.push_back({0});
          c.widens = mode.params.form == RmsNormForm::kOnce;
          c.run = [params = mode.params](const std::string& name, const ExecutionContext& context,
                                         Views in, Views out) {
            FUSEBLOCK_ASSIGN_OR_RETURN(const auto args,
                                       CheckRmsNorm(in[0], OptionalView(in, 1), params, out[0]));
            return RunNamed(RmsNormImplementations(), name, context, args);
          };
          cases.push_back(std::move(c));
        }
      }
    }
  }
  return cases;
}

namespace {

Case AddRmsNormCase(DType dtype, const NormWeight& weight, const NormMode& mode, Rounding sum,
                    std::optional<DType> residual) {
  Case c;
  c.name = absl::StrCat(Label(dtype), weight.name, residual ? "_h" + Label(*residual) : "", "_",
                        mode.name, sum == Rounding::kHf ? "_hf" : "_fused");
  c.inputs = {{"x", dtype, OperandKind::kRows, kSquareMax},
              {"r", dtype, OperandKind::kRows, kSquareMax}};
  if (weight.dtype) c.inputs.push_back({"weight", *weight.dtype, OperandKind::kVector, kWeightMax});
  c.outputs = {{"y", dtype}};
  c.errors = {NormError(dtype, mode.params, 1, weight.dtype ? 2 : -1)};
  c.in_place = {{0}, {1}};
  if (residual) {
    c.outputs.push_back({"residual_out", *residual});
    // A sum of two values of one dtype is exact in FP32 or has no bit near a tie: one rounding.
    c.errors.push_back({Roundings(1), true});
    c.in_place = {{0, -1}, {1, -1}};
    if (*residual == dtype) c.in_place.insert(c.in_place.end(), {{-1, 0}, {-1, 1}, {0, 1}, {1, 0}});
  }
  c.widens = mode.params.form == RmsNormForm::kOnce && sum == Rounding::kFused;
  c.run = [params = mode.params, sum](const std::string& name, const ExecutionContext& context,
                                      Views in, Views out) {
    std::optional<TensorView> residual_out;
    if (out.size() > 1) residual_out = out[1];
    FUSEBLOCK_ASSIGN_OR_RETURN(const auto args, CheckAddRmsNorm(in[0], in[1], OptionalView(in, 2),
                                                                params, sum, out[0], residual_out));
    return RunNamed(AddRmsNormImplementations(), name, context, args);
  };
  return c;
}

}  // namespace

std::vector<Case> AddRmsNormCases() {
  std::vector<Case> cases;
  for (const DType dtype : kFloatDTypes) {
    std::vector<std::optional<DType>> residuals = {std::nullopt};
    for (const DType residual : WithFp32(dtype)) residuals.push_back(residual);
    for (const NormWeight& weight : NormWeights(dtype)) {
      for (const NormMode& mode : NormModes(weight.dtype.has_value())) {
        for (const Rounding sum : {Rounding::kFused, Rounding::kHf}) {
          for (const auto& residual : residuals) {
            cases.push_back(AddRmsNormCase(dtype, weight, mode, sum, residual));
          }
        }
      }
    }
  }
  return cases;
}

}  // namespace fuseblock::testing
