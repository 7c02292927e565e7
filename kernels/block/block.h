// A served block: a norm, a feed-forward or a lookup with its weights on one device, ready to run
// on any number of rows. Constant after Create, so any number of lanes may run it at a time, each
// with its own workspace.
//
// Rows are independent: a row's output bits depend on that row's inputs, the weights, the spec and
// the device's backend, and on nothing else (no other row, no row count, no thread count, no
// alignment).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/base/activation.h"
#include "kernels/base/context.h"
#include "kernels/base/rounding.h"
#include "kernels/base/tensor_view.h"

namespace fuseblock {

enum class BlockKind : uint8_t {
  kNormResidual,  // h = x (+ residual); y = norm(h); residual_out = h
  kMlp,           // y = mlp(x)
  kFfnPath,       // h = x (+ residual); y = h + mlp(norm(h))
  kEmbedding,     // y = table[ids]
};
std::string_view Name(BlockKind kind);  // "norm_residual", "mlp", "ffn_path", "embedding"

// Everything that decides a block's arithmetic, apart from the weights' values.
struct BlockSpec {
  BlockKind kind = BlockKind::kMlp;
  DType dtype = DType::kF32;  // compute dtype: of x, residual, y and the weights
  int64_t hidden = 0;         // H
  int64_t intermediate = 0;   // I; 0 where there is no feed-forward
  int64_t vocabulary = 0;     // V; embedding only
  RmsNormParams norm;         // where the kind has a norm
  Activation activation = Activation::kSilu;
  bool gated = true;  // false: down(f(up(x))), with GELU, which has no gate
  Rounding rounding = Rounding::kFused;
  float embedding_scale = 1.0f;
};

// A block's weights by role, in host memory (a mapped checkpoint); what the kind does not use is
// unset. FP32, FP16 or BF16; converted to the spec's dtype on Create, rounding to nearest even.
struct BlockWeights {
  std::optional<ConstTensorView> norm;                // [H]
  std::optional<ConstTensorView> gate, up;            // [I, H]; gate where the spec has one
  std::optional<ConstTensorView> down;                // [H, I]
  std::optional<ConstTensorView> gate_bias, up_bias;  // [I]
  std::optional<ConstTensorView> down_bias;           // [H]
  std::optional<ConstTensorView> table;               // [V, H]
};

// One input or output as a client sees it: `columns` is the last axis, 0 for one that has none
// (ids: one id a token).
struct BlockTensor {
  const char* name;
  std::vector<DType> dtypes;  // accepted, or the one given
  int64_t columns;
  bool optional;
};

// Blocks that are created with one cache hold a feed-forward's weights once: those whose gate, up,
// down and biases lie at the same host addresses, for the same dtype and device (`mlp` and
// `ffn_path` of a layer). That host memory must stay as it is while the cache lives; the blocks may
// outlive the cache. Not thread-safe.
class BlockWeightCache {
 public:
  // copies: whether weights may also be held packed for kernels of their own, Block::CopyBytes, as
  // long as the device has room. False keeps the room for weights that are yet to come; blocks that
  // are created without a cache leave none.
  explicit BlockWeightCache(bool copies = true);
  ~BlockWeightCache();

  struct Impl;  // defined in block/
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

class Block {
 public:
  // Prepares the weights on the device. INVALID_ARGUMENT naming the role, expected and given shape
  // when they do not fit the spec; RESOURCE_EXHAUSTED when the device has no room.
  static absl::StatusOr<std::unique_ptr<const Block>> Create(const BlockSpec& spec,
                                                             const BlockWeights& weights,
                                                             Device device,
                                                             const ParallelFor& parallel_for = {},
                                                             BlockWeightCache* cache = nullptr);
  ~Block();

  const BlockSpec& spec() const { return spec_; }
  Device device() const { return device_; }
  // Held on the device; weights that a cache shares count in the first block that was created with
  // them.
  size_t weight_bytes() const;
  // What such a block's weights may take beside their plain bytes, for the copy that kernels of
  // their own read; blocks that a cache shares the weights of share the copy.
  static int64_t CopyBytes(const BlockSpec& spec, Device device);

  // In the order in which Run takes them.
  static std::vector<BlockTensor> Inputs(const BlockSpec& spec);
  static std::vector<BlockTensor> Outputs(const BlockSpec& spec);
  // The arithmetic, for people.
  static std::string Formula(const BlockSpec& spec);

  // Bytes of workspace for a run of that many rows; grows with rows.
  size_t WorkspaceBytes(int64_t rows) const;

  // inputs and outputs: dense [rows, columns] ([rows] for ids) on the device, in Inputs' and
  // Outputs' order. An optional input that is left out has data == nullptr and rank 0, and so has
  // an output that exists only with it (residual_out). workspace: WorkspaceBytes(rows) bytes on the
  // device, 256-byte aligned, not shared with another run. Outputs must not overlap inputs. Errors:
  // INVALID_ARGUMENT naming the tensor, expected and given; the device's own errors.
  absl::Status Run(const ExecutionContext& context, absl::Span<const ConstTensorView> inputs,
                   absl::Span<const TensorView> outputs, absl::Span<std::byte> workspace) const;

  struct Prepared;  // the weights, defined in kinds.h
  const Prepared& prepared() const { return *prepared_; }

 private:
  Block(const BlockSpec& spec, Device device, std::unique_ptr<Prepared> prepared);

  BlockSpec spec_;
  Device device_;
  std::unique_ptr<Prepared> prepared_;
};

}  // namespace fuseblock
