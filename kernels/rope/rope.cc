// The checks of the rotary position embedding and the order in which its implementations are tried.
#include "kernels/rope/rope.h"

#include <algorithm>
#include <utility>

#include "kernels/base/implementations.h"
#include "kernels/base/status.h"
#include "kernels/rope/positions.h"
#include "kernels/rope/rope_cuda.h"

namespace fuseblock {

// Defined in rope_ref.cc and rope_cpu.cc.
absl::Status RopeReference(const ExecutionContext& context, const RopeArgs& args);
absl::Status RopeHighway(const ExecutionContext& context, const RopeArgs& args);

namespace {

constexpr char kName[] = "rope";

FuseblockRopeHeads CudaHeads(const RopeHeads& heads) {
  return {heads.in,
          heads.out,
          heads.heads,
          heads.in_token_stride,
          heads.in_head_stride,
          heads.out_token_stride,
          heads.out_head_stride};
}

int Launch(FuseblockRope* launch, const RopeArgs& args, void* stream) {
  const FuseblockRopeCall call{CudaHeads(args.q),
                               CudaHeads(args.k),
                               static_cast<const int64_t*>(args.positions),
                               args.table->data(),
                               args.table->attention_factor(),
                               args.tokens,
                               args.head_dim,
                               args.table->rotary_dims(),
                               args.pairs == RopePairs::kNeighbours,
                               static_cast<int>(args.dtype)};
  return launch(&call, stream);
}

constexpr Implementation<RopeArgs> kList[] = {
    CudaImplementation<kName, Launch>(),
    HighwayImplementation(RopeHighway),
    ReferenceImplementation(RopeReference),
};

// [tokens, heads, head_dim] with a contiguous last axis and no stride below 0.
absl::Status CheckHeads(const char* name, const ConstTensorView& view) {
  if (view.rank != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": expected [tokens, heads, head_dim], got ", Describe(view)));
  }
  if (view.cols() > 1 && view.stride[2] != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": axis 2 must be contiguous (stride 1), got stride ", view.stride[2]));
  }
  for (int axis = 0; axis < 2; ++axis) {
    if (view.shape[axis] > 1 && view.stride[axis] < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": axis ", axis, " must have a stride >= 0, got stride ", view.stride[axis]));
    }
  }
  return absl::OkStatus();
}

// Whether no two heads of a writable view share an element: the axis of the smaller stride steps
// over whole heads, the other over whole runs of the first.
absl::Status CheckHeadsApart(const char* name, const TensorView& view) {
  if (view.elements() == 0) return absl::OkStatus();
  int inner = 1, outer = 0;
  if (view.shape[0] > 1 && (view.shape[1] == 1 || view.stride[0] < view.stride[1])) {
    std::swap(inner, outer);
  }
  int64_t extent = view.cols();
  for (const int axis : {inner, outer}) {
    if (view.shape[axis] > 1 && view.stride[axis] < extent) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": heads must not overlap, axis ", axis,
                                                     " must have a stride >= ", extent,
                                                     ", got stride ", view.stride[axis]));
    }
    if (view.shape[axis] > 1) extent += (view.shape[axis] - 1) * view.stride[axis];
  }
  return absl::OkStatus();
}

// The heads of a token as one row, where they lie side by side: so that slices of one packed tensor
// are seen not to overlap.
template <typename View>
View TokenRows(const View& view) {
  if (view.rank != 3 || (view.shape[1] > 1 && view.stride[1] != view.shape[2])) return view;
  View rows = view;
  rows.rank = 2;
  rows.shape[1] = view.shape[1] * view.shape[2];
  rows.stride[1] = 1;
  return rows;
}

struct NamedOperand {
  const char* in_name;
  const char* out_name;
  const RopeOperand& operand;
};

absl::Status CheckOperand(const NamedOperand& named, const RopeTable& table, int64_t tokens) {
  const auto& [in, out] = named.operand;
  FUSEBLOCK_RETURN_IF_ERROR(CheckFloat(named.in_name, in));
  FUSEBLOCK_RETURN_IF_ERROR(CheckHeads(named.in_name, in));
  if (in.shape[0] != tokens || in.cols() < table.rotary_dims()) {
    return absl::InvalidArgumentError(absl::StrCat(
        named.in_name, ": expected [", tokens, ", heads, head_dim >= ", table.rotary_dims(),
        "] (positions' tokens, the table's rotary dims), got ", Describe(in)));
  }
  FUSEBLOCK_RETURN_IF_ERROR(CheckDType(named.out_name, out, in.dtype));
  FUSEBLOCK_RETURN_IF_ERROR(CheckSameShape(named.in_name, in, named.out_name, out));
  FUSEBLOCK_RETURN_IF_ERROR(CheckHeads(named.out_name, out));
  FUSEBLOCK_RETURN_IF_ERROR(CheckHeadsApart(named.out_name, out));
  return CheckNoPartialOverlap(named.out_name, TokenRows(out), named.in_name, TokenRows(in));
}

// k against q: one head_dim and dtype, and neither output touches the other's operands.
absl::Status CheckTogether(const RopeOperand& q, const RopeOperand& k) {
  FUSEBLOCK_RETURN_IF_ERROR(CheckDType("k", k.in, q.in.dtype));
  if (k.in.cols() != q.in.cols()) {
    return absl::InvalidArgumentError(
        absl::StrCat("k: expected q's head_dim, ", q.in.cols(), ", got ", Describe(k.in)));
  }
  FUSEBLOCK_RETURN_IF_ERROR(CheckApart("q_out", TokenRows(q.out), "k", TokenRows(k.in)));
  FUSEBLOCK_RETURN_IF_ERROR(CheckApart("k_out", TokenRows(k.out), "q", TokenRows(q.in)));
  return CheckApart("k_out", TokenRows(k.out), "q_out", TokenRows(q.out));
}

RopeHeads HeadsOf(const RopeOperand& operand) {
  return {operand.in.data,      operand.out.data,      operand.in.shape[1],  operand.in.stride[0],
          operand.in.stride[1], operand.out.stride[0], operand.out.stride[1]};
}

}  // namespace

absl::Span<const Implementation<RopeArgs>> RopeImplementations() { return kList; }

absl::Status CheckRopePositions(const void* positions, int64_t count, int64_t max_position) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = ReadPosition(positions, i);
    if (position < 0 || position >= max_position) {
      return absl::OutOfRangeError(absl::StrCat("positions[", i, "]: expected 0 <= position < ",
                                                max_position, ", got ", position));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<RopeArgs> CheckRope(const RopeTable& table, RopePairs pairs,
                                   const ConstTensorView& positions, const RopeOperand& q,
                                   const std::optional<RopeOperand>& k) {
  FUSEBLOCK_RETURN_IF_ERROR(CheckDType("positions", positions, DType::kI64));
  const int64_t tokens = positions.elements();
  FUSEBLOCK_RETURN_IF_ERROR(CheckVector("positions", positions, tokens));
  FUSEBLOCK_RETURN_IF_ERROR(CheckOperand({"q", "q_out", q}, table, tokens));
  FUSEBLOCK_RETURN_IF_ERROR(CheckApart("q_out", q.out, "positions", positions));
  if (k) {
    FUSEBLOCK_RETURN_IF_ERROR(CheckOperand({"k", "k_out", *k}, table, tokens));
    FUSEBLOCK_RETURN_IF_ERROR(CheckApart("k_out", k->out, "positions", positions));
    FUSEBLOCK_RETURN_IF_ERROR(CheckTogether(q, *k));
  }
  RopeArgs args{};
  args.table = &table;
  args.pairs = pairs;
  args.positions = positions.data;
  args.tokens = tokens;
  args.head_dim = q.in.cols();
  args.dtype = q.in.dtype;
  args.q = HeadsOf(q);
  if (k) args.k = HeadsOf(*k);
  return args;
}

absl::Status Rope(const ExecutionContext& context, const RopeTable& table, RopePairs pairs,
                  const ConstTensorView& positions, const RopeOperand& q,
                  const std::optional<RopeOperand>& k) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const RopeArgs args, CheckRope(table, pairs, positions, q, k));
  if (!(table.device() == context.device)) {
    return absl::InvalidArgumentError(absl::StrCat("rope table: expected on ",
                                                   DeviceName(context.device), ", got ",
                                                   DeviceName(table.device())));
  }
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("positions", positions, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("q", q.in, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("q_out", q.out, context.device));
  if (k) {
    FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("k", k->in, context.device));
    FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("k_out", k->out, context.device));
  }
  if (context.device.type == DeviceType::kCpu) {
    FUSEBLOCK_RETURN_IF_ERROR(
        CheckRopePositions(args.positions, args.tokens, table.max_position()));
  }
  if (args.tokens == 0 || args.head_dim == 0) return absl::OkStatus();
  return RunFirst(kName, RopeImplementations(), context, args);
}

}  // namespace fuseblock
