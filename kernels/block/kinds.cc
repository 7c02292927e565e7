// What each kind of block takes, gives and does: a norm, a feed-forward, both with the residual
// stream around them, a lookup.
#include "kernels/block/kinds.h"

#include "absl/strings/str_cat.h"
#include "kernels/add_rms_norm/add_rms_norm.h"
#include "kernels/embedding/embedding.h"
#include "kernels/ffn_path/ffn_path.h"
#include "kernels/rms_norm/rms_norm.h"

namespace fuseblock {
namespace {

// ---- inputs and outputs

BlockTensor Hidden(const char* name, const BlockSpec& spec, bool optional = false) {
  return {name, {spec.dtype}, spec.hidden, optional};
}

std::vector<BlockTensor> TakesX(const BlockSpec& spec) { return {Hidden("x", spec)}; }

std::vector<BlockTensor> TakesXAndResidual(const BlockSpec& spec) {
  return {Hidden("x", spec), Hidden("residual", spec, /*optional=*/true)};
}

std::vector<BlockTensor> TakesIds(const BlockSpec&) {
  return {{"ids", {DType::kI32, DType::kI64}, 0, false}};
}

std::vector<BlockTensor> GivesY(const BlockSpec& spec) { return {Hidden("y", spec)}; }

std::vector<BlockTensor> GivesYAndResidual(const BlockSpec& spec) {
  return {Hidden("y", spec), Hidden("residual_out", spec, /*optional=*/true)};
}

// ---- formulas

std::string NormText(const BlockSpec& spec, const char* of) {
  const std::string weight =
      spec.norm.weight_offset == 0 ? "w" : absl::StrCat("(w + ", spec.norm.weight_offset, ")");
  return absl::StrCat(of, " / sqrt(mean(", of, "^2) + ", spec.norm.eps, ") * ", weight);
}

std::string MlpText(const BlockSpec& spec, const char* of) {
  const std::string f(Name(spec.activation));
  if (!spec.gated) return absl::StrCat("down(", f, "(up(", of, ")))");
  return absl::StrCat("down(", f, "(gate(", of, ")) * up(", of, "))");
}

std::string NormResidualFormula(const BlockSpec& spec) {
  return absl::StrCat("h = x (+ residual); y = ", NormText(spec, "h"), "; residual_out = h");
}

std::string MlpFormula(const BlockSpec& spec) { return absl::StrCat("y = ", MlpText(spec, "x")); }

std::string FfnPathFormula(const BlockSpec& spec) {
  return absl::StrCat("h = x (+ residual); n = ", NormText(spec, "h"), "; y = h + ",
                      MlpText(spec, "n"));
}

std::string EmbeddingFormula(const BlockSpec& spec) {
  return spec.embedding_scale == 1.0f ? "y = table[ids]"
                                      : absl::StrCat("y = table[ids] * ", spec.embedding_scale);
}

// ---- workspace

size_t NoWorkspace(const BlockSpec&, const Block::Prepared&, int64_t) { return 0; }

size_t MlpWorkspace(const BlockSpec& spec, const Block::Prepared& weights, int64_t rows) {
  return FeedForwardWorkspaceBytes(*weights.mlp, rows, spec.rounding);
}

size_t FfnPathWorkspace(const BlockSpec& spec, const Block::Prepared& weights, int64_t rows) {
  return FfnPathWorkspaceBytes(*weights.mlp, rows, spec.rounding);
}

// ---- runs

// The family's rounding form holds in `hf` only: `fused` rounds the norm's result once.
RmsNormParams NormParams(const BlockSpec& spec) {
  RmsNormParams params = spec.norm;
  if (spec.rounding == Rounding::kFused) params.form = RmsNormForm::kOnce;
  return params;
}

absl::Status RunNormResidual(const BlockRun& run) {
  const ConstTensorView& x = run.inputs[0];
  const ConstTensorView& residual = run.inputs[1];
  const RmsNormParams params = NormParams(run.spec);
  if (residual.rank == 0) {
    return RmsNorm(run.context, x, run.weights.norm.view, params, run.outputs[0]);
  }
  return AddRmsNorm(run.context, x, residual, run.weights.norm.view, params, run.spec.rounding,
                    run.outputs[0], run.outputs[1]);
}

absl::Status RunMlp(const BlockRun& run) {
  return FeedForward(run.context, run.inputs[0], *run.weights.mlp, run.spec.rounding,
                     run.outputs[0], run.workspace);
}

absl::Status RunFfnPath(const BlockRun& run) {
  return FfnPath(run.context,
                 {run.inputs[0], run.inputs[1], run.weights.norm.view, NormParams(run.spec),
                  run.weights.mlp.get(), run.spec.rounding, run.outputs[0], run.workspace});
}

absl::Status RunEmbedding(const BlockRun& run) {
  return Embedding(run.context, run.inputs[0], run.weights.table.view, run.spec.embedding_scale,
                   run.outputs[0]);
}

constexpr KindEntry kKinds[] = {
    {BlockKind::kNormResidual, "norm_residual", true, false, false, TakesXAndResidual,
     GivesYAndResidual, NormResidualFormula, NoWorkspace, RunNormResidual},
    {BlockKind::kMlp, "mlp", false, true, false, TakesX, GivesY, MlpFormula, MlpWorkspace, RunMlp},
    {BlockKind::kFfnPath, "ffn_path", true, true, false, TakesXAndResidual, GivesY, FfnPathFormula,
     FfnPathWorkspace, RunFfnPath},
    {BlockKind::kEmbedding, "embedding", false, false, true, TakesIds, GivesY, EmbeddingFormula,
     NoWorkspace, RunEmbedding},
};

}  // namespace

const KindEntry& EntryOf(BlockKind kind) { return kKinds[static_cast<size_t>(kind)]; }

}  // namespace fuseblock
