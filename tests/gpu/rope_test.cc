// The rotary position embedding on the GPU at shapes that reach each of its launches (whole vectors
// and single elements, few and many heads, several blocks along a head, tails), with equal bits in
// every layout and the CPU's values; and beyond 2^31 elements.
#include "kernels/rope/rope.h"

#include "absl/strings/str_cat.h"
#include "tests/gpu/device_rows.h"
#include "tests/support/numerics_compare.h"

namespace fuseblock::testing {
namespace {

constexpr Layout kLayouts[] = {{0, 0}, {1, 0}, {0, 8}, {3, 5}};

struct Sizes {
  int64_t tokens, heads, kv_heads, head_dim, rotary_dims;
};
constexpr Sizes kSizes[] = {{3, 1, 0, 2, 2},     {5, 3, 1, 65, 64},   {7, 32, 8, 128, 128},
                            {300, 9, 3, 64, 64}, {2, 71, 1, 80, 32},  {4, 2, 1, 4104, 4096},
                            {3, 5, 2, 96, 0},    {1, 300, 3, 40, 40}, {600, 1, 0, 8, 4}};

TensorView HeadsAt(const TensorView& rows, int64_t column, int64_t heads, int64_t head_dim) {
  TensorView view(static_cast<std::byte*>(rows.data) + column * SizeOf(rows.dtype), rows.dtype,
                  {rows.shape[0], heads, head_dim}, rows.device);
  view.stride[0] = rows.stride[0];
  return view;
}

RopeTable TableOf(int64_t rotary_dims) {
  auto table = RopeTable::Make(kGpu, {rotary_dims, 1 << 20, 10000, {}});
  EXPECT_TRUE(table.ok()) << table.status();
  return *std::move(table);
}

Tensor HostPositions(int64_t tokens) {
  Tensor positions(DType::kI64, 1, tokens);
  for (int64_t i = 0; i < tokens; ++i) {
    positions.Set(0, i, static_cast<double>((i * 7919) % (1 << 20)));
  }
  return positions;
}

class GpuRope : public ::testing::TestWithParam<DType> {
 protected:
  // Turns the q and k of `from`'s packed rows into those of `to`.
  absl::Status Run(const RopeTable& table, RopePairs pairs, const Sizes& sizes,
                   const DeviceRows& positions, const DeviceRows& from, const DeviceRows& to) {
    const auto operand = [&](int64_t column, int64_t heads) {
      return RopeOperand{HeadsAt(from.view(), column, heads, sizes.head_dim),
                         HeadsAt(to.view(), column, heads, sizes.head_dim)};
    };
    std::optional<RopeOperand> k;
    if (sizes.kv_heads > 0) k = operand(sizes.heads * sizes.head_dim, sizes.kv_heads);
    return Rope(stream_.context(), table, pairs, positions.vector(), operand(0, sizes.heads), k);
  }

  // The CPU's angles and formula are the same: each side is within 4 units of 2^-24 of |a| + |b|
  // and half a last place.
  void ExpectLikeCpu(const Sizes& sizes, RopePairs pairs, const Tensor& x, const Tensor& got) {
    const auto table = RopeTable::Make({}, {sizes.rotary_dims, 1 << 20, 10000, {}});
    ASSERT_TRUE(table.ok()) << table.status();
    const Tensor positions = HostPositions(sizes.tokens);
    Tensor want(x.dtype(), x.rows(), x.columns());
    const auto rows = [&](const Tensor& tensor) {
      return TensorView(tensor.memory(), tensor.dtype(), {tensor.rows(), tensor.columns()});
    };
    const auto operand = [&](int64_t column, int64_t heads) {
      return RopeOperand{HeadsAt(rows(x), column, heads, sizes.head_dim),
                         HeadsAt(rows(want), column, heads, sizes.head_dim)};
    };
    std::optional<RopeOperand> k;
    if (sizes.kv_heads > 0) k = operand(sizes.heads * sizes.head_dim, sizes.kv_heads);
    const absl::Status status =
        Rope({}, *table, pairs, HostVector(positions), operand(0, sizes.heads), k);
    ASSERT_TRUE(status.ok()) << status;
    Bound bound;
    bound.fp32_roundings = 8;
    bound.magnitude = [](int64_t, int64_t) { return 6.0; };  // |a| + |b| of Normals
    const Comparison comparison = Compare(want, got, bound);
    EXPECT_TRUE(comparison.within) << "head_dim " << sizes.head_dim << ": " << comparison.message;
  }

  GpuStream stream_;
};
INSTANTIATE_TEST_SUITE_P(DTypes, GpuRope, ::testing::ValuesIn(kFloatDTypes),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

TEST_P(GpuRope, EveryLaunchInEveryLayout) {
  for (const Sizes& sizes : kSizes) {
    const RopeTable table = TableOf(sizes.rotary_dims);
    const DeviceRows positions(HostPositions(sizes.tokens));
    const int64_t columns = (sizes.heads + sizes.kv_heads) * sizes.head_dim;
    const Tensor x = Normals(GetParam(), sizes.tokens, columns, 1, 11);
    for (const RopePairs pairs : {RopePairs::kHalves, RopePairs::kNeighbours}) {
      std::optional<Tensor> expected;
      for (const Layout& layout : kLayouts) {
        const std::string where = absl::StrCat("head_dim ", sizes.head_dim, ", offset ",
                                               layout.offset, ", padding ", layout.padding);
        DeviceRows from(x.Copy(layout)), to(GetParam(), sizes.tokens, columns, layout);
        ASSERT_TRUE(Run(table, pairs, sizes, positions, from, to).ok()) << where;
        stream_.Wait();
        const Tensor got = to.Read().Copy();
        if (!expected) expected = got.Copy();
        ASSERT_EQ(FirstDifference(*expected, got), "") << where;
        ASSERT_TRUE(Run(table, pairs, sizes, positions, from, from).ok()) << where;
        stream_.Wait();
        ASSERT_EQ(FirstDifference(got, from.Read().Copy()), "") << where << ", in place";
      }
      ASSERT_NO_FATAL_FAILURE(ExpectLikeCpu(sizes, pairs, x, *expected));
    }
  }
}

// More than 2^31 elements, in place: the last token's heads are those of that token alone.
TEST(GpuRopeLarge, MoreThan2To31Elements) {
  constexpr int64_t kHeads = 64, kHeadDim = 128, kColumns = kHeads * kHeadDim;
  constexpr int64_t kTokens = (int64_t{1} << 31) / kColumns + 3;
  const RopeTable table = TableOf(kHeadDim);
  const Buffer q = GpuBuffer(kTokens * kColumns * 2);
  const Buffer positions = GpuBuffer(kTokens * 8);
  const Tensor last = Normals(DType::kF16, 1, kColumns, 1, 13);
  const int64_t last_position = 4321;
  ASSERT_EQ(Gpu().memset_async(0, q.data(), 0, q.size(), nullptr), 0);
  ASSERT_EQ(Gpu().memset_async(0, positions.data(), 0, positions.size(), nullptr), 0);
  std::byte* const last_row = q.data() + (kTokens - 1) * kColumns * 2;
  ASSERT_EQ(Gpu().copy_async(0, last_row, last.memory(), last.memory_bytes(), nullptr), 0);
  ASSERT_EQ(Gpu().copy_async(0, positions.data() + (kTokens - 1) * 8, &last_position, 8, nullptr),
            0);
  ASSERT_EQ(Gpu().stream_synchronize(0, nullptr), 0);
  GpuStream stream;
  const auto turn = [&](std::byte* heads, std::byte* at, int64_t tokens) {
    const TensorView view(heads, DType::kF16, {tokens, kHeads, kHeadDim}, kGpu);
    const absl::Status status =
        Rope(stream.context(), table, RopePairs::kHalves,
             ConstTensorView(at, DType::kI64, {tokens}, kGpu), {view, view}, {});
    ASSERT_TRUE(status.ok()) << status;
    stream.Wait();
  };
  ASSERT_NO_FATAL_FAILURE(turn(q.data(), positions.data(), kTokens));
  Tensor got(DType::kF16, 1, kColumns);
  ASSERT_EQ(Gpu().copy_async(0, got.memory(), last_row, got.memory_bytes(), nullptr), 0);
  ASSERT_EQ(Gpu().stream_synchronize(0, nullptr), 0);
  // The first row's memory takes the last token alone.
  ASSERT_EQ(Gpu().copy_async(0, q.data(), last.memory(), last.memory_bytes(), nullptr), 0);
  ASSERT_EQ(Gpu().stream_synchronize(0, nullptr), 0);
  ASSERT_NO_FATAL_FAILURE(turn(q.data(), positions.data() + (kTokens - 1) * 8, 1));
  Tensor alone(DType::kF16, 1, kColumns);
  ASSERT_EQ(Gpu().copy_async(0, alone.memory(), q.data(), alone.memory_bytes(), nullptr), 0);
  ASSERT_EQ(Gpu().stream_synchronize(0, nullptr), 0);
  EXPECT_EQ(FirstDifference(alone, got), "");
}

}  // namespace
}  // namespace fuseblock::testing
