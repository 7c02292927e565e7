// The checks of the embedding lookup and the order in which its implementations are tried.
#include "kernels/embedding/embedding.h"

#include "kernels/base/implementations.h"
#include "kernels/base/status.h"
#include "kernels/embedding/embedding_cuda.h"
#include "kernels/embedding/ids.h"

namespace fuseblock {

// Defined in embedding_ref.cc and embedding_cpu.cc.
absl::Status EmbeddingReference(const ExecutionContext& context, const EmbeddingArgs& args);
absl::Status EmbeddingHighway(const ExecutionContext& context, const EmbeddingArgs& args);

namespace {

// A contiguous vector of ids, of any rank.
absl::Status CheckIds(const ConstTensorView& ids) {
  if (ids.dtype != DType::kI32 && ids.dtype != DType::kI64) {
    return absl::InvalidArgumentError(
        absl::StrCat("ids: expected INT32 or INT64, got ", std::string(Name(ids.dtype))));
  }
  int64_t step = 1;
  for (int axis = ids.rank - 1; axis >= 0; --axis) {
    if (ids.shape[axis] > 1 && ids.stride[axis] != step) {
      return absl::InvalidArgumentError(absl::StrCat("ids: expected contiguous, got stride ",
                                                     ids.stride[axis], " on axis ", axis));
    }
    step *= ids.shape[axis];
  }
  return absl::OkStatus();
}

constexpr char kName[] = "embedding";

int Launch(FuseblockEmbedding* launch, const EmbeddingArgs& args, void* stream) {
  const FuseblockCudaRows table = CudaRows(args.table, args.dtype);
  const FuseblockCudaRows y = CudaRows(args.y, args.dtype);
  const int64_t* padding_id = args.padding_id ? &*args.padding_id : nullptr;
  return launch(args.ids, static_cast<int>(args.ids_dtype), args.count, &table, args.scale,
                padding_id, &y, stream);
}

constexpr Implementation<EmbeddingArgs> kList[] = {
    CudaImplementation<kName, Launch>(),
    HighwayImplementation(EmbeddingHighway),
    ReferenceImplementation(EmbeddingReference),
};

}  // namespace

absl::Span<const Implementation<EmbeddingArgs>> EmbeddingImplementations() { return kList; }

absl::Status CheckEmbeddingIds(const void* ids, DType ids_dtype, int64_t count, int64_t vocabulary,
                               std::optional<int64_t> padding_id, int64_t first) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = ReadId(ids, ids_dtype, i);
    if ((id < 0 || id >= vocabulary) && id != padding_id) {
      return absl::OutOfRangeError(
          absl::StrCat("ids[", first + i, "]: expected 0 <= id < ", vocabulary, ", got ", id));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<EmbeddingArgs> CheckEmbedding(const ConstTensorView& ids,
                                             const ConstTensorView& table, float scale,
                                             const TensorView& y,
                                             std::optional<int64_t> padding_id) {
  FUSEBLOCK_RETURN_IF_ERROR(CheckFloat("table", table));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDType("y", y, table.dtype));
  FUSEBLOCK_RETURN_IF_ERROR(CheckIds(ids));
  if (table.rank != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("table: expected [V, H], got ", Describe(table)));
  }
  ConstTensorView expected(nullptr, table.dtype, ids.dims());
  if (expected.rank == kMaxRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("ids: expected rank < ", kMaxRank, ", got rank ", ids.rank));
  }
  expected.shape[expected.rank++] = table.cols();
  if (y.dims() != expected.dims()) {
    return absl::InvalidArgumentError(
        absl::StrCat("y: expected ids' shape with the table's columns, ", Describe(expected),
                     ", got ", Describe(y)));
  }
  EmbeddingArgs args;
  FUSEBLOCK_ASSIGN_OR_RETURN(args.table, AsRows("table", table));
  FUSEBLOCK_ASSIGN_OR_RETURN(args.y, AsRows("y", y));
  FUSEBLOCK_RETURN_IF_ERROR(CheckApart("y", y, "table", table));
  FUSEBLOCK_RETURN_IF_ERROR(CheckApart("y", y, "ids", ids));
  args.ids = ids.data;
  args.ids_dtype = ids.dtype;
  args.count = ids.elements();
  args.dtype = table.dtype;
  args.scale = scale;
  args.padding_id = padding_id;
  return args;
}

absl::Status Embedding(const ExecutionContext& context, const ConstTensorView& ids,
                       const ConstTensorView& table, float scale, const TensorView& y,
                       std::optional<int64_t> padding_id) {
  FUSEBLOCK_ASSIGN_OR_RETURN(const EmbeddingArgs args,
                             CheckEmbedding(ids, table, scale, y, padding_id));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("ids", ids, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("table", table, context.device));
  FUSEBLOCK_RETURN_IF_ERROR(CheckDevice("y", y, context.device));
  if (context.device.type == DeviceType::kCpu) {
    FUSEBLOCK_RETURN_IF_ERROR(
        CheckEmbeddingIds(ids.data, ids.dtype, args.count, args.table.rows, padding_id));
  }
  if (y.elements() == 0) return absl::OkStatus();
  return RunFirst(kName, EmbeddingImplementations(), context, args);
}

}  // namespace fuseblock
