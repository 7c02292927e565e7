#include "tests/numerics/cases.h"

#include <cstdlib>

#include "gtest/gtest.h"
#include "kernels/add_residual/add_residual.h"
#include "kernels/add_rms_norm/add_rms_norm.h"
#include "kernels/block_reduce/block_reduce.h"
#include "kernels/causal_softmax/causal_softmax.h"
#include "kernels/embedding/embedding.h"
#include "kernels/geglu/geglu.h"
#include "kernels/gelu_erf/gelu_erf.h"
#include "kernels/gelu_tanh/gelu_tanh.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/silu/silu.h"
#include "kernels/softmax/softmax.h"
#include "kernels/softmax_masked/softmax_masked.h"
#include "kernels/swiglu/swiglu.h"
#include "kernels/swiglu_clamped/swiglu_clamped.h"
#include "kernels/warp_reduce/warp_reduce.h"
#include "tests/numerics/cases/case_parts.h"

namespace fuseblock::testing {
namespace {

template <auto kList>
std::vector<ImplementationInfo> Describe() {
  return DescribeList(kList());
}

bool IsIndices(const Operand& operand) {
  return operand.kind == OperandKind::kIds || operand.kind == OperandKind::kPositions;
}

// One index per row; of positions every fourth is the last, every fourth 0.
Tensor MakeIndices(const Operand& operand, int64_t rows, uint64_t seed) {
  const bool ids = operand.kind == OperandKind::kIds;
  Tensor indices(operand.dtype, rows, 1);
  Random random(seed);
  for (int64_t row = 0; row < rows; ++row) {
    int64_t index = random.Below(ids ? kTableRows : kPositions);
    if (!ids && row % 4 == 1) index = kPositions - 1;
    if (!ids && row % 4 == 2) index = 0;
    indices.Set(row, 0, static_cast<double>(index));
  }
  return indices;
}

// Of the outputs.
int64_t OutputColumns(const Case& c, const std::vector<Tensor>& inputs) {
  const int64_t columns = inputs.back().columns();
  return c.inputs.back().kind == OperandKind::kPairs ? columns / 2 : columns;
}

int64_t OperandRows(const Operand& operand, int64_t rows) {
  if (operand.kind == OperandKind::kTable) return kTableRows;
  return operand.kind == OperandKind::kVector ? 1 : rows;
}

int64_t OutputColumns(const Operand& output, int64_t columns) {
  return output.kind == OperandKind::kPerRow ? 1 : columns;
}

Placed PlacedInput(const Operand& operand, Tensor& tensor) {
  const bool flat = operand.kind == OperandKind::kVector || IsIndices(operand);
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
      {"warp_reduce", Describe<WarpReduceRowsImplementations>, WarpReduceCases},
      {"block_reduce", Describe<BlockReduceRowsImplementations>, BlockReduceCases},
      {"add_residual", Describe<AddResidualImplementations>, AddResidualCases},
      {"silu", Describe<SiluImplementations>, SiluCases},
      {"gelu_erf", Describe<GeluErfImplementations>, GeluErfCases},
      {"gelu_tanh", Describe<GeluTanhImplementations>, GeluTanhCases},
      {"swiglu", Describe<SwiGluImplementations>, SwiGluCases},
      {"swiglu_clamped", Describe<SwiGluClampedImplementations>, SwiGluClampedCases},
      {"geglu", Describe<GeGluImplementations>, GeGluCases},
      {"rms_norm", Describe<RmsNormImplementations>, RmsNormCases},
      {"add_rms_norm", Describe<AddRmsNormImplementations>, AddRmsNormCases},
      {"layer_norm", Describe<LayerNormImplementations>, LayerNormCases},
      {"softmax", Describe<SoftmaxImplementations>, SoftmaxCases},
      {"softmax_masked", Describe<SoftmaxMaskedImplementations>, SoftmaxMaskedCases},
      {"causal_softmax", Describe<CausalSoftmaxImplementations>, CausalSoftmaxCases},
      {"embedding", Describe<EmbeddingImplementations>, EmbeddingCases},
      {"rope", Describe<RopeImplementations>, RopeCases},
  };
  return *kernels;
}

const KernelUnderTest& Kernel(const std::string& name) {
  for (const KernelUnderTest& kernel : KernelsUnderTest()) {
    if (kernel.name == name) return kernel;
  }
  std::abort();
}

std::vector<Tensor> MakeInputs(const Case& c, int64_t rows, int64_t columns, Pattern pattern,
                               uint64_t seed) {
  std::vector<Tensor> inputs;
  for (const Operand& operand : c.inputs) {
    seed = Random(seed).Next();
    if (IsIndices(operand)) {
      inputs.push_back(MakeIndices(operand, rows, seed));
      continue;
    }
    inputs.emplace_back(operand.dtype, OperandRows(operand, rows),
                        operand.kind == OperandKind::kPairs ? 2 * columns : columns);
    const bool shared = operand.kind == OperandKind::kVector;
    Fill(inputs.back(), shared && pattern == Pattern::kNotFinite ? Pattern::kNormal : pattern,
         operand.magnitude_max, seed);
  }
  return inputs;
}

std::vector<Tensor> RunCase(const Case& c, const Variant& variant, std::vector<Tensor>& inputs,
                            Layout output_layout, const ParallelFor& parallel_for) {
  const int64_t rows = inputs[0].rows(), columns = OutputColumns(c, inputs);
  std::vector<Tensor> outputs;
  std::vector<Tensor*> pointers;
  for (const Operand& output : c.outputs) {
    outputs.emplace_back(output.dtype, rows, OutputColumns(output, columns), output_layout);
  }
  for (Tensor& output : outputs) pointers.push_back(&output);
  RunInto(c, variant, inputs, pointers, parallel_for);
  return outputs;
}

std::vector<Tensor> RunNamedCase(const std::string& kernel, const std::string& name,
                                 const Variant& variant, std::vector<Tensor>& inputs) {
  for (const Case& c : Kernel(kernel).cases()) {
    if (c.name == name) return RunCase(c, variant, inputs);
  }
  ADD_FAILURE() << "no case " << kernel << " " << name;
  return {};
}

std::vector<Tensor> RunCaseInPlace(const Case& c, const Variant& variant,
                                   std::vector<Tensor> inputs, const std::vector<int>& in_place) {
  const int64_t rows = inputs[0].rows(), columns = OutputColumns(c, inputs);
  std::vector<Tensor> outputs;
  for (const Operand& output : c.outputs) {
    outputs.emplace_back(output.dtype, rows, OutputColumns(output, columns));
  }
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
