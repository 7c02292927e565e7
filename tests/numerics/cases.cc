#include "tests/numerics/cases.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/add_residual/add_residual.h"
#include "kernels/add_rms_norm/add_rms_norm.h"
#include "kernels/base/status.h"
#include "kernels/embedding/embedding.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/silu/silu.h"
#include "kernels/swiglu/swiglu.h"

namespace fuseblock::testing {
namespace {

using Views = absl::Span<const TensorView>;

std::string Label(DType dtype) { return std::string(Traits(dtype).label); }

std::function<double(int64_t)> Roundings(double count) {
  return [count](int64_t) { return count; };
}

// The dtypes that an operand beside one of `dtype` may have: that one and FP32.
std::vector<DType> WithFp32(DType dtype) {
  if (dtype == DType::kF32) return {dtype};
  return {dtype, DType::kF32};
}

// ---- add_residual: one FP32 addition.

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

// ---- silu and swiglu.
//
// silu in FP32, in units of 2^-24: e^-|x| within 2 ulp of FP32, 4 units, and no more of it reaches
// the result; 1 + t, x t and the quotient one each; one for a split range. A 16-bit output may use
// a faster exponential and reciprocal of 2^-20, 16 units.
double SiluRoundings(DType out) { return out == DType::kF32 ? 8 : 18; }

std::vector<Case> SiluCases() {
  std::vector<Case> cases;
  for (const DType y : kFloatDTypes) {
    for (const DType x : WithFp32(y)) {
      Case c;
      c.name = absl::StrCat(Label(x), "_to_", Label(y));
      c.inputs = {{"x", x}};
      c.outputs = {{"y", y}};
      c.errors = {{Roundings(SiluRoundings(y))}};
      if (x == y) c.in_place.push_back({0});
      c.run = [](const std::string& name, const ExecutionContext& context, Views in, Views out) {
        FUSEBLOCK_ASSIGN_OR_RETURN(const auto args, CheckSilu(in[0], out[0]));
        return RunNamed(SiluImplementations(), name, context, args);
      };
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

double UpFactor(const std::vector<Tensor>& inputs, int64_t row, int64_t column) {
  return inputs[1].At(row, column);
}

std::vector<Case> SwiGluCases() {
  std::vector<Case> cases;
  for (const DType y : kFloatDTypes) {
    for (const DType in : WithFp32(y)) {
      for (const Rounding rounding : {Rounding::kFused, Rounding::kHf}) {
        const bool hf = rounding == Rounding::kHf;
        if (hf && in != y) continue;
        Case c;
        c.name = absl::StrCat(Label(in), "_to_", Label(y), hf ? "_hf" : "_fused");
        c.inputs = {{"gate", in}, {"up", in}};
        c.outputs = {{"y", y}};
        c.errors = {{Roundings(SiluRoundings(y) + 1), false, hf && y != DType::kF32, UpFactor}};
        if (in == y) c.in_place = {{0}, {1}};
        c.widens = !hf;
        c.run = [rounding](const std::string& name, const ExecutionContext& context, Views views,
                           Views out) {
          FUSEBLOCK_ASSIGN_OR_RETURN(const auto args,
                                     CheckSwiGlu(views[0], views[1], rounding, out[0]));
          return RunNamed(SwiGluImplementations(), name, context, args);
        };
        cases.push_back(std::move(c));
      }
    }
  }
  return cases;
}

// ---- rms_norm and add_rms_norm.
//
// In units of 2^-24: a sum of H squares whose longest chain of additions is at most 40 + H / 512
// (lanes and segments; never more than H), all terms of one sign, so its relative error is the
// chain's length, one more for the square; the mean and eps add one each; the root halves all of
// that. Then the root, its reciprocal, x times it, weight plus offset and the product: one each.
double RmsRoundings(int64_t columns) {
  const double chain = std::min<double>(columns, 40 + columns / 512.0);
  return (chain + 3) / 2 + 5;
}
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

// ---- embedding: a copy, or one FP32 product.

std::vector<Case> EmbeddingCases() {
  std::vector<Case> cases;
  for (const DType dtype : kFloatDTypes) {
    for (const DType ids : {DType::kI32, DType::kI64}) {
      for (const float scale : {1.0f, 25.298221f}) {
        Case c;
        c.name = absl::StrCat(Label(dtype), "_", Label(ids), scale == 1 ? "" : "_scaled");
        c.inputs = {{"ids", ids, OperandKind::kIds}, {"table", dtype, OperandKind::kTable}};
        c.outputs = {{"y", dtype}};
        c.errors = {{Roundings(1), scale == 1 || dtype == DType::kF32}};
        c.run = [scale](const std::string& name, const ExecutionContext& context, Views in,
                        Views out) {
          FUSEBLOCK_ASSIGN_OR_RETURN(const auto args, CheckEmbedding(in[0], in[1], scale, out[0]));
          return RunNamed(EmbeddingImplementations(), name, context, args);
        };
        cases.push_back(std::move(c));
      }
    }
  }
  return cases;
}

template <auto kList>
std::vector<ImplementationInfo> Describe() {
  return DescribeList(kList());
}

int64_t OperandRows(const Operand& operand, int64_t rows) {
  if (operand.kind == OperandKind::kTable) return kTableRows;
  return operand.kind == OperandKind::kVector ? 1 : rows;
}

Placed PlacedInput(const Operand& operand, Tensor& tensor) {
  const bool flat = operand.kind == OperandKind::kVector || operand.kind == OperandKind::kIds;
  return {&tensor, flat ? Shape::kVector : Shape::kMatrix};
}

void RunInto(const Case& c, const Variant& variant, std::vector<Tensor>& inputs,
             const std::vector<Tensor*>& outputs, const ParallelFor& parallel_for) {
  std::vector<Placed> operands;
  for (size_t i = 0; i < inputs.size(); ++i) {
    operands.push_back(PlacedInput(c.inputs[i], inputs[i]));
  }
  for (Tensor* output : outputs) operands.push_back({output, Shape::kMatrix});
  const ScopedVariant scoped(variant);
  const absl::Status status = RunPlaced(
      variant.device, operands, parallel_for, [&](const ExecutionContext& context, Views views) {
        return c.run(variant.implementation, context, views.subspan(0, inputs.size()),
                     views.subspan(inputs.size()));
      });
  EXPECT_TRUE(status.ok()) << c.name << " on " << variant.label << ": " << status;
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_TRUE(outputs[i]->GuardsIntact())
        << c.name << " on " << variant.label << " writes beyond " << c.outputs[i].name;
  }
}

}  // namespace

const std::vector<KernelUnderTest>& KernelsUnderTest() {
  static const auto* kernels = new std::vector<KernelUnderTest>{
      {"add_residual", Describe<AddResidualImplementations>, AddResidualCases},
      {"silu", Describe<SiluImplementations>, SiluCases},
      {"swiglu", Describe<SwiGluImplementations>, SwiGluCases},
      {"rms_norm", Describe<RmsNormImplementations>, RmsNormCases},
      {"add_rms_norm", Describe<AddRmsNormImplementations>, AddRmsNormCases},
      {"embedding", Describe<EmbeddingImplementations>, EmbeddingCases},
  };
  return *kernels;
}

std::vector<Tensor> MakeInputs(const Case& c, int64_t rows, int64_t columns, Pattern pattern,
                               uint64_t seed) {
  std::vector<Tensor> inputs;
  for (const Operand& operand : c.inputs) {
    seed = Random(seed).Next();
    if (operand.kind == OperandKind::kIds) {
      Tensor ids(operand.dtype, rows, 1);
      Random random(seed);
      for (int64_t row = 0; row < rows; ++row) ids.Set(row, 0, random.Below(kTableRows));
      inputs.push_back(std::move(ids));
      continue;
    }
    inputs.emplace_back(operand.dtype, OperandRows(operand, rows), columns);
    const bool shared = operand.kind == OperandKind::kVector;
    Fill(inputs.back(), shared && pattern == Pattern::kNotFinite ? Pattern::kNormal : pattern,
         operand.magnitude_max, seed);
  }
  return inputs;
}

std::vector<Tensor> RunCase(const Case& c, const Variant& variant, std::vector<Tensor>& inputs,
                            Layout output_layout, const ParallelFor& parallel_for) {
  const int64_t rows = inputs[0].rows(), columns = inputs.back().columns();
  std::vector<Tensor> outputs;
  std::vector<Tensor*> pointers;
  for (const Operand& output : c.outputs) {
    outputs.emplace_back(output.dtype, rows, columns, output_layout);
  }
  for (Tensor& output : outputs) pointers.push_back(&output);
  RunInto(c, variant, inputs, pointers, parallel_for);
  return outputs;
}

std::vector<Tensor> RunCaseInPlace(const Case& c, const Variant& variant,
                                   std::vector<Tensor> inputs, const std::vector<int>& in_place) {
  const int64_t rows = inputs[0].rows(), columns = inputs.back().columns();
  std::vector<Tensor> outputs;
  for (const Operand& output : c.outputs) outputs.emplace_back(output.dtype, rows, columns);
  std::vector<Tensor*> pointers;
  for (size_t i = 0; i < outputs.size(); ++i) {
    pointers.push_back(in_place[i] < 0 ? &outputs[i] : &inputs[static_cast<size_t>(in_place[i])]);
  }
  RunInto(c, variant, inputs, pointers, {});
  std::vector<Tensor> results;
  for (const Tensor* pointer : pointers) results.push_back(pointer->Copy());
  return results;
}

std::vector<Tensor> Expected(const Case& c, std::vector<Tensor>& inputs) {
  const Variant reference{"reference", DeviceType::kCpu, 0, "reference"};
  if (!c.widens) return RunCase(c, reference, inputs);
  Case wide = c;
  std::vector<Tensor> wide_inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool floating = Traits(c.inputs[i].dtype).epsilon > 0;
    if (floating) wide.inputs[i].dtype = DType::kF32;
    wide_inputs.push_back(floating ? inputs[i].Cast(DType::kF32) : inputs[i].Copy());
  }
  for (Operand& output : wide.outputs) output.dtype = DType::kF32;
  return RunCase(wide, reference, wide_inputs);
}

}  // namespace fuseblock::testing
