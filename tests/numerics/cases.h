// The list from which the row kernels' numerical tests are generated: each kernel with every
// combination of dtypes and modes that it takes, and what each output may differ by from FP64. A
// new kernel is a list of cases in cases/ and one line in KernelsUnderTest(); a new implementation
// is covered by being in its kernel's list.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/support/numerics_compare.h"
#include "tests/support/numerics_place.h"
#include "tests/support/numerics_values.h"
#include "tests/support/numerics_variants.h"

namespace fuseblock::testing {

enum class OperandKind {
  kRows,       // [rows, columns], one row per row of the batch
  kPerRow,     // [rows, 1], one value per row: outputs of a reduction
  kPairs,      // [rows, 2 columns], two neighbours for each column of the output
  kIds,        // [rows] ids into kTableRows rows
  kPositions,  // [rows] positions below kPositions, the last one among them
  kTable,      // [kTableRows, columns], the same for every row
  kVector,     // [columns], the same for every row
};
inline constexpr int64_t kTableRows = 37;
inline constexpr int64_t kPositions = 131072;

struct Operand {
  const char* name;
  DType dtype;
  OperandKind kind = OperandKind::kRows;
  double magnitude_max = 1e300;  // of the test's values: where the formula's squares stay in FP32
};

// What is special about an output's error; see Bound.
struct OutputError {
  std::function<double(int64_t columns)> fp32_roundings;
  bool bit_exact = false;
  bool rounds_intermediate = false;
  // The factor of a cell, from the inputs; empty: none.
  std::function<double(const std::vector<Tensor>& inputs, int64_t row, int64_t column)> factor{};
  // What a cell's roundings are relative to, where that takes a look at whole rows: called once for
  // the inputs, it gives the function of the cell. Empty: the cell's value.
  std::function<std::function<double(int64_t row, int64_t column)>(
      const std::vector<Tensor>& inputs)>
      magnitudes{};
  // Whether terms cancel near 0, where an error in a cell's own last places says nothing: it is
  // recorded in those of the row's largest.
  bool cancels = false;
};

struct Case {
  std::string name;  // "bf16_w32_first"
  std::vector<Operand> inputs, outputs;
  std::vector<OutputError> errors;  // one per output
  // Ways to run in place: for each output the input that it overwrites, or -1.
  std::vector<std::vector<int>> in_place;
  // FP32 inputs and outputs compute the same function without its last rounding, so that the
  // reference in FP32 stands for the exact value. False where an intermediate is rounded to the
  // dtype.
  bool widens = true;
  std::function<absl::Status(const std::string& implementation, const ExecutionContext& context,
                             absl::Span<const TensorView> inputs,
                             absl::Span<const TensorView> outputs)>
      run;
};

struct KernelUnderTest {
  const char* name;
  std::vector<ImplementationInfo> (*implementations)();
  std::vector<Case> (*cases)();
};

const std::vector<KernelUnderTest>& KernelsUnderTest();
const KernelUnderTest& Kernel(const std::string& name);

// The inputs of a case, drawn from the seed.
std::vector<Tensor> MakeInputs(const Case& c, int64_t rows, int64_t columns, Pattern pattern,
                               uint64_t seed);

// Runs one variant on tensors. `layouts` (one per output, or none) lay the outputs out; an output
// that overwrites an input is that tensor. Fails the running test on an error or a write beyond an
// output.
std::vector<Tensor> RunCase(const Case& c, const Variant& variant, std::vector<Tensor>& inputs,
                            Layout output_layout = {}, const ParallelFor& parallel_for = {});
// The same for the case of that name; fails the test when there is none.
std::vector<Tensor> RunNamedCase(const std::string& kernel, const std::string& name,
                                 const Variant& variant, std::vector<Tensor>& inputs);
// As RunCase, with output i written over input in_place[i] (-1: into its own tensor).
std::vector<Tensor> RunCaseInPlace(const Case& c, const Variant& variant,
                                   std::vector<Tensor> inputs, const std::vector<int>& in_place);

// The reference's outputs: in FP32 from FP32 copies of the inputs where the case widens.
std::vector<Tensor> Expected(const Case& c, std::vector<Tensor>& inputs);

}  // namespace fuseblock::testing
