// The rotary position embedding beyond the ladder: examples by hand, what a rotation must keep, the
// layouts that attention uses, the scalings' edges, and refusals.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "tests/numerics/rope/rope_runs.h"

namespace fuseblock::testing {
namespace {

RopeSetup SetupOf(int64_t rotary_dims, RopePairs pairs = RopePairs::kHalves) {
  return {{rotary_dims, 1 << 20, 10000, {}}, pairs};
}

Tensor Normals(DType dtype, int64_t rows, int64_t columns, uint64_t seed) {
  Tensor tensor(dtype, rows, columns);
  Fill(tensor, Pattern::kNormal, 1e4, seed);
  return tensor;
}

constexpr RopePairs kBothPairs[] = {RopePairs::kHalves, RopePairs::kNeighbours};

// Head [1, 0, 10, 0] and its turn by position 1 in pairs of frequencies 1 and 1/100.
TEST(Rope, WorkedByHand) {
  Tensor positions = PositionsOf({1});
  Tensor x(DType::kF32, 1, 4);
  x.Set(0, 0, 1);
  x.Set(0, 2, 10);
  const double cos1 = 0.5403023058681398, sin1 = 0.8414709848078965;
  const double cos2 = 0.9999500004166653, sin2 = 0.009999833334166664;
  const double halves[] = {cos1 - 10 * sin1, 0, 10 * cos1 + sin1, 0};
  const double neighbours[] = {cos1, sin1, 10 * cos2, 10 * sin2};
  for (const Variant& variant : RopeVariants()) {
    const Tensor a = Turned(variant, SetupOf(4), positions, {1, 0, 4}, x);
    const Tensor b = Turned(variant, SetupOf(4, RopePairs::kNeighbours), positions, {1, 0, 4}, x);
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(a.At(0, i), halves[i], 11 * 4 * kUnitRoundoffFp32) << variant.label;
      EXPECT_NEAR(b.At(0, i), neighbours[i], 10 * 4 * kUnitRoundoffFp32) << variant.label;
    }
  }
}

class RopeDTypes : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, RopeDTypes, ::testing::ValuesIn(kFloatDTypes),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

TEST_P(RopeDTypes, PositionZeroChangesNothing) {
  Tensor positions = PositionsOf({0, 0});
  Tensor x = Normals(GetParam(), 2, 3 * 66, 1);
  for (const Variant& variant : RopeVariants()) {
    for (const RopePairs pairs : kBothPairs) {
      const Tensor got = Turned(variant, SetupOf(66, pairs), positions, {2, 1, 66}, x);
      EXPECT_EQ(FirstDifference(x, got), "") << variant.label;
    }
  }
}

// Where pair `pair`'s two columns lie.
std::pair<int64_t, int64_t> ColumnsOf(RopePairs pairs, int64_t rotary_dims, int64_t pair) {
  if (pairs == RopePairs::kHalves) return {pair, pair + rotary_dims / 2};
  return {2 * pair, 2 * pair + 1};
}

// A pair's length is kept, and turning the mirrored pair (a, -b) mirrors the inverse rotation, so
// that twice gives (a, -b) back mirrored. A result's error is half its last place plus 4 units of
// 2^-24 of |a| + |b| <= 1.5 length.
TEST_P(RopeDTypes, LengthIsKeptAndTheInverseRestores) {
  constexpr int64_t kDim = 48, kTokens = 9;
  Tensor positions = PositionsOf({0, 1, 2, 3, 100, 5000, 131071, 999999, 1000000});
  Tensor x = Normals(GetParam(), kTokens, kDim, 2);
  const double unit = Traits(GetParam()).epsilon / 2 + 6 * kUnitRoundoffFp32;
  for (const Variant& variant : RopeVariants()) {
    for (const RopePairs pairs : kBothPairs) {
      const RopeSetup setup = SetupOf(kDim, pairs);
      const Packing packing{1, 0, kDim};
      const Tensor turned = Turned(variant, setup, positions, packing, x);
      Tensor mirrored = turned.Copy();
      for (int64_t token = 0; token < kTokens; ++token) {
        for (int64_t pair = 0; pair < kDim / 2; ++pair) {
          const int64_t second = ColumnsOf(pairs, kDim, pair).second;
          mirrored.Set(token, second, -turned.At(token, second));
        }
      }
      const Tensor back = Turned(variant, setup, positions, packing, mirrored);
      for (int64_t token = 0; token < kTokens; ++token) {
        for (int64_t pair = 0; pair < kDim / 2; ++pair) {
          const auto [first, second] = ColumnsOf(pairs, kDim, pair);
          const double a = x.At(token, first), b = x.At(token, second);
          const double length = std::hypot(a, b);
          EXPECT_NEAR(std::hypot(turned.At(token, first), turned.At(token, second)), length,
                      1.5 * unit * length)
              << variant.label << " token " << token << " pair " << pair;
          EXPECT_NEAR(back.At(token, first), a, 2.5 * unit * length) << variant.label;
          EXPECT_NEAR(-back.At(token, second), b, 2.5 * unit * length) << variant.label;
        }
      }
    }
  }
}

// Against long double angles, which share no code with the reference.
TEST(Rope, PositionOneMillionIsAsExactAsAnother) {
  constexpr int64_t kDim = 128;
  Tensor positions = PositionsOf({1000000, 999983, 131071});
  Tensor x = Normals(DType::kF32, 3, kDim, 3);
  for (const Variant& variant : RopeVariants()) {
    const Tensor got = Turned(variant, SetupOf(kDim), positions, {1, 0, kDim}, x);
    for (int64_t token = 0; token < 3; ++token) {
      for (int64_t pair = 0; pair < kDim / 2; ++pair) {
        const long double frequency = powl(10000.0L, -2.0L * static_cast<long double>(pair) / kDim);
        const long double angle = static_cast<long double>(positions.At(token, 0)) * frequency;
        const double a = x.At(token, pair), b = x.At(token, pair + kDim / 2);
        const double want = static_cast<double>(a * cosl(angle) - b * sinl(angle));
        EXPECT_NEAR(got.At(token, pair), want, 5 * kUnitRoundoffFp32 * (std::abs(a) + std::abs(b)))
            << variant.label << " token " << token << " pair " << pair;
      }
    }
  }
}

// q and k as slices of one packed qkv buffer, in place: v stays, and the bits are those of tensors
// of their own; nor does it matter that k came along.
TEST_P(RopeDTypes, SlicesOfOnePackedBuffer) {
  constexpr int64_t kTokens = 5, kDim = 64, kHeads = 6, kKvHeads = 2;
  constexpr int64_t kV = (kHeads + kKvHeads) * kDim, kColumns = kV + kKvHeads * kDim;
  Tensor positions = PositionsOf({7, 0, 131071, 7, 12});
  const Tensor qkv = Normals(GetParam(), kTokens, kColumns, 4);
  for (const Variant& variant : RopeVariants()) {
    for (const RopePairs pairs : kBothPairs) {
      const RopeSetup setup = SetupOf(48, pairs);
      Tensor packed = qkv.Copy({3, 1});
      RunRope(variant, setup, positions, {kHeads, kKvHeads, kDim}, packed, packed);
      Tensor separate(GetParam(), kTokens, kDim);
      for (int64_t head = 0; head < kHeads + kKvHeads; ++head) {
        for (int64_t token = 0; token < kTokens; ++token) {
          for (int64_t i = 0; i < kDim; ++i) {
            separate.Set(token, i, qkv.At(token, head * kDim + i));
          }
        }
        const Tensor alone = Turned(variant, setup, positions, {1, 0, kDim}, separate);
        for (int64_t token = 0; token < kTokens; ++token) {
          for (int64_t i = 0; i < kDim; ++i) {
            ASSERT_EQ(packed.Bits(token, head * kDim + i), alone.Bits(token, i))
                << variant.label << " head " << head;
          }
        }
      }
      for (int64_t token = 0; token < kTokens; ++token) {
        for (int64_t i = kV; i < kColumns; ++i) {
          ASSERT_EQ(packed.Bits(token, i), qkv.Bits(token, i)) << variant.label;
        }
      }
    }
  }
}

// [heads, tokens, head_dim] in memory.
TEST(Rope, HeadsBeforeTokens) {
  constexpr int64_t kTokens = 4, kHeads = 3, kDim = 10;
  const int64_t positions[kTokens] = {3, 1, 4, 15};
  const Tensor x = Normals(DType::kF32, kTokens, kHeads * kDim, 5);
  Tensor moved(DType::kF32, kHeads * kTokens, kDim), out(DType::kF32, kHeads * kTokens, kDim);
  for (int64_t row = 0; row < kHeads * kTokens; ++row) {
    for (int64_t i = 0; i < kDim; ++i) {
      moved.Set(row, i, x.At(row % kTokens, row / kTokens * kDim + i));
    }
  }
  const auto view = [&](const Tensor& tensor) {
    TensorView v(tensor.memory(), DType::kF32, {kTokens, kHeads, kDim});
    v.stride = {kDim, kTokens * kDim, 1};
    return v;
  };
  const auto table = RopeTable::Make({}, SetupOf(kDim).params);
  ASSERT_TRUE(table.ok());
  const ConstTensorView at(positions, DType::kI64, {kTokens});
  const absl::Status status =
      Rope({}, *table, RopePairs::kHalves, at, {view(moved), view(out)}, {});
  ASSERT_TRUE(status.ok()) << status;
  Tensor want(DType::kF32, kTokens, kHeads * kDim);
  const TensorView rows(x.memory(), DType::kF32, {kTokens, kHeads, kDim});
  const TensorView turned(want.memory(), DType::kF32, {kTokens, kHeads, kDim});
  ASSERT_TRUE(Rope({}, *table, RopePairs::kHalves, at, {rows, turned}, {}).ok());
  for (int64_t row = 0; row < kHeads * kTokens; ++row) {
    for (int64_t i = 0; i < kDim; ++i) {
      ASSERT_EQ(out.Bits(row, i), want.Bits(row % kTokens, row / kTokens * kDim + i));
    }
  }
}

// What does not turn is copied bit for bit, NaNs with their payloads among it: head size 65 with 64
// turning, one column that cannot turn, rotary dims 0.
TEST_P(RopeDTypes, OtherColumnsAreCopied) {
  Tensor positions = PositionsOf({5, 1000, 77});
  struct Sizes {
    int64_t head_dim, rotary_dims;
  };
  for (const auto& [head_dim, rotary_dims] :
       {Sizes{65, 64}, Sizes{1, 0}, Sizes{64, 0}, Sizes{80, 32}, Sizes{128, 64}}) {
    Tensor x = Normals(GetParam(), 3, 3 * head_dim, 6);
    // A NaN with a payload in each head's last column.
    for (int64_t row = 0; row < 3; ++row) {
      for (int64_t head = 1; head <= 3; ++head) {
        std::byte* cell =
            x.Data(x.memory()) + (row * x.stride() + head * head_dim - 1) * SizeOf(GetParam());
        const uint32_t payload = GetParam() == DType::kF32 ? 0x7FC12345u : 0x7FE5u;
        std::memcpy(cell, &payload, static_cast<size_t>(SizeOf(GetParam())));
      }
    }
    for (const Variant& variant : RopeVariants()) {
      for (const RopePairs pairs : kBothPairs) {
        Tensor got(GetParam(), 3, 3 * head_dim);
        RunRope(variant, SetupOf(rotary_dims, pairs), positions, {2, 1, head_dim}, x, got);
        for (int64_t row = 0; row < 3; ++row) {
          for (int64_t column = 0; column < x.columns(); ++column) {
            if (column % head_dim >= rotary_dims) {
              ASSERT_EQ(got.Bits(row, column), x.Bits(row, column)) << variant.label;
            }
          }
        }
      }
    }
  }
}

// More pairs than the CPU holds the cos and sin of at a time, and a token's heads over many blocks.
TEST_P(RopeDTypes, LargeHeadsAndManyHeads) {
  Tensor positions = PositionsOf({3, 131071});
  const Variant reference{"reference", DeviceType::kCpu, 0, "reference"};
  for (const Packing& packing : {Packing{2, 1, 4160}, Packing{300, 7, 32}}) {
    Tensor x = Normals(GetParam(), 2, (packing.heads + packing.kv_heads) * packing.head_dim, 7);
    const RopeSetup setup = SetupOf(packing.head_dim);
    const Tensor want = Turned(reference, setup, positions, packing, x);
    Bound bound;
    bound.fp32_roundings = 4;
    bound.magnitude = [](int64_t, int64_t) { return 12.0; };  // two normals of this generator
    for (const Variant& variant : RopeVariants()) {
      const Comparison comparison =
          Compare(want, Turned(variant, setup, positions, packing, x), bound);
      EXPECT_TRUE(comparison.within) << variant.label << ": " << comparison.message;
    }
  }
}

// ---- Scalings.

const std::vector<double> Frequencies(const RopeParams& params) {
  const auto table = RopeTable::Make({}, params);
  EXPECT_TRUE(table.ok()) << table.status();
  return table.ok() ? table->inverse_frequencies() : std::vector<double>();
}

// Outside its band a frequency is kept or divided, at the band's edges too, inside it is between
// and falls with the pair.
TEST(RopeScalings, Llama3BandEdges) {
  RopeParams params{128, 131072, 500000, {}};
  const std::vector<double> plain = Frequencies(params);
  params.scaling.kind = RopeScalingKind::kLlama3;
  params.scaling.factor = 8;
  params.scaling.original_max_position = 8192;
  // Pairs 30 and 40 lie at the edges themselves.
  const double turns = 8192 / (2 * 3.14159265358979323846);
  params.scaling.high_freq_factor = turns * plain[30];
  params.scaling.low_freq_factor = turns * plain[40];
  const std::vector<double> scaled = Frequencies(params);
  for (size_t pair = 0; pair < plain.size(); ++pair) {
    if (pair <= 30) {
      EXPECT_NEAR(scaled[pair], plain[pair], 1e-14 * plain[pair]) << pair;
    } else if (pair >= 40) {
      EXPECT_NEAR(scaled[pair], plain[pair] / 8, 1e-14 * plain[pair]) << pair;
    } else {
      EXPECT_LT(scaled[pair], plain[pair]);
      EXPECT_GT(scaled[pair], plain[pair] / 8);
      EXPECT_LT(scaled[pair], scaled[pair - 1]);
    }
  }
}

TEST(RopeScalings, LinearDividesPositions) {
  RopeParams params{64, 131072, 10000, {}};
  const std::vector<double> plain = Frequencies(params);
  params.scaling.kind = RopeScalingKind::kLinear;
  params.scaling.factor = 4;
  const std::vector<double> scaled = Frequencies(params);
  for (size_t pair = 0; pair < plain.size(); ++pair) EXPECT_EQ(scaled[pair], plain[pair] / 4);
}

// The first pairs keep their frequency, the last are divided; cos and sin carry the attention
// factor, which at position 0 is all that is left; beyond the original context too.
TEST(RopeScalings, YarnMultipliesCosAndSin) {
  RopeSetup setup = SetupOf(128);
  const std::vector<double> plain = Frequencies(setup.params);
  setup.params.scaling.kind = RopeScalingKind::kYarn;
  setup.params.scaling.factor = 16;
  setup.params.scaling.original_max_position = 4096;
  const std::vector<double> scaled = Frequencies(setup.params);
  EXPECT_EQ(scaled[0], plain[0]);
  EXPECT_EQ(scaled[63], plain[63] / 16);
  const double attention_factor = 0.1 * std::log(16.0) + 1;
  Tensor positions = PositionsOf({0, 65535});
  Tensor x = Normals(DType::kF32, 2, 128, 8);
  for (const Variant& variant : RopeVariants()) {
    const Tensor got = Turned(variant, setup, positions, {1, 0, 128}, x);
    for (int64_t i = 0; i < 64; ++i) {
      const double a = x.At(0, i), b = x.At(1, i), c = x.At(1, i + 64);
      EXPECT_NEAR(got.At(0, i), attention_factor * a, 4 * kUnitRoundoffFp32 * std::abs(a) * 1.3);
      EXPECT_NEAR(std::hypot(got.At(1, i), got.At(1, i + 64)), attention_factor * std::hypot(b, c),
                  2 * 1.3 * 5 * kUnitRoundoffFp32 * (std::abs(b) + std::abs(c)))
          << variant.label;
    }
  }
  setup.params.scaling.attention_factor = 2;
  EXPECT_EQ(RopeTable::Make({}, setup.params)->attention_factor(), 2);
}

// ---- Refusals.

void Expect(const absl::Status& status, const std::string& message,
            absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(message));
}

TEST(RopeTables, RefuseBadParameters) {
  const auto expect = [](RopeParams params, const std::string& message) {
    Expect(RopeTable::Make({}, params).status(), message);
  };
  expect({3, 16, 10000, {}}, "rope rotary_dims: expected an even number >= 0, got 3");
  expect({-2, 16, 10000, {}}, "rope rotary_dims: expected an even number >= 0, got -2");
  expect({4, 0, 10000, {}}, "rope max_position: expected 1 .. 2^27, got 0");
  expect({4, kRopeMaxPosition + 1, 10000, {}}, "rope max_position: expected 1 .. 2^27");
  expect({4, 16, 1, {}}, "rope theta: expected a finite value > 1, got 1");
  expect({4, 16, std::nan(""), {}}, "rope theta: expected a finite value > 1, got nan");
  RopeParams params{4, 16, 10000, {}};
  params.scaling.kind = RopeScalingKind::kLinear;
  params.scaling.factor = 0.5;
  expect(params, "rope scaling factor: expected a finite value >= 1, got 0.5");
  params.scaling.factor = 8;
  params.scaling.kind = RopeScalingKind::kLlama3;
  expect(params, "rope original_max_position: expected a value >= 1, got 0");
  params.scaling.original_max_position = 8192;
  params.scaling.low_freq_factor = 4;
  expect(params, "rope high_freq_factor: expected a finite value above low_freq_factor, got 4");
  params.scaling.kind = RopeScalingKind::kYarn;
  params.scaling.beta_slow = 33;
  expect(params, "rope beta_fast: expected a finite value >= beta_slow, got 32");
  params.scaling.beta_slow = 0;
  expect(params, "rope beta_slow: expected a finite value > 0, got 0");
  params.scaling.beta_slow = 1;
  params.scaling.attention_factor = 0;
  expect(params, "rope attention_factor: expected a finite value > 0, got 0");
}

class RopeRefusals : public ::testing::Test {
 protected:
  RopeRefusals() : table_(*RopeTable::Make({}, {4, 16, 10000, {}})) {}

  TensorView At(int64_t element, std::initializer_list<int64_t> dims, DType dtype = DType::kF32) {
    return TensorView(buffer_ + element, dtype, dims);
  }
  absl::Status Run(const RopeOperand& q, const std::optional<RopeOperand>& k = std::nullopt) {
    return Rope({}, table_, RopePairs::kHalves, ConstTensorView(positions_, DType::kI64, {2}), q,
                k);
  }
  RopeOperand Whole(int64_t element = 0) {
    return {At(element, {2, 3, 4}), At(element, {2, 3, 4})};
  }

  alignas(64) float buffer_[1024] = {};
  int64_t positions_[2] = {0, 15};
  RopeTable table_;
};

TEST_F(RopeRefusals, Positions) {
  ASSERT_TRUE(Run(Whole()).ok());
  buffer_[1] = 7;
  for (const int64_t bad : {int64_t{16}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    positions_[1] = bad;
    Expect(Run(Whole()), absl::StrCat("positions[1]: expected 0 <= position < 16, got ", bad),
           absl::StatusCode::kOutOfRange);
  }
  EXPECT_EQ(buffer_[1], 7) << "something was written beside a bad position";
  int32_t narrow[2] = {0, 1};
  Expect(
      Rope({}, table_, RopePairs::kHalves, ConstTensorView(narrow, DType::kI32, {2}), Whole(), {}),
      "positions: expected INT64, got INT32");
  Expect(Rope({}, table_, RopePairs::kHalves, ConstTensorView(positions_, DType::kI64, {1}),
              Whole(), {}),
         "q: expected [1, heads, head_dim >= 4] (positions' tokens, the table's rotary dims), got "
         "[2, 3, 4] FP32");
}

TEST_F(RopeRefusals, Operands) {
  Expect(Run({At(0, {2, 12}), At(0, {2, 12})}),
         "q: expected [tokens, heads, head_dim], got [2, 12] FP32");
  Expect(Run({At(0, {2, 3, 3}), At(0, {2, 3, 3})}), "head_dim >= 4");
  Expect(Run({At(0, {2, 3, 4}), At(64, {2, 4, 3})}), "q_out: expected the shape of q [2, 3, 4]");
  Expect(Run({At(0, {2, 3, 4}), At(64, {2, 3, 4}, DType::kBF16)}),
         "q_out: expected FP32, got BF16");
  Expect(Run({At(0, {2, 3, 4}, DType::kI64), At(64, {2, 3, 4})}), "q: expected FP32, FP16 or BF16");
  Expect(Run({At(0, {2, 3, 4}), At(2, {2, 3, 4})}), "q_out: must be q itself or not touch it");
  TensorView gaps = At(0, {2, 3, 4});
  gaps.stride[2] = 2;
  Expect(Run({gaps, At(512, {2, 3, 4})}), "q: axis 2 must be contiguous (stride 1), got stride 2");
  TensorView backwards = At(512, {2, 3, 4});
  backwards.stride[1] = -4;
  Expect(Run({backwards, At(0, {2, 3, 4})}), "q: axis 1 must have a stride >= 0, got stride -4");
  TensorView crossed = At(512, {2, 3, 4});
  crossed.stride = {8, 4, 1};
  Expect(Run({At(0, {2, 3, 4}), crossed}),
         "q_out: heads must not overlap, axis 0 must have a stride >= 12, got stride 8");
}

TEST_F(RopeRefusals, QAndK) {
  EXPECT_TRUE(Run(Whole(), Whole(64)).ok());
  Expect(Run(Whole(), RopeOperand{At(64, {2, 1, 6}), At(64, {2, 1, 6})}),
         "k: expected q's head_dim, 4, got [2, 1, 6] FP32");
  Expect(Run(Whole(), RopeOperand{At(64, {2, 1, 4}, DType::kF16), At(64, {2, 1, 4}, DType::kF16)}),
         "k: expected FP32, got FP16");
  Expect(Run(Whole(), RopeOperand{At(64, {2, 1, 4}), At(0, {2, 1, 4})}),
         "k_out: must not overlap q");
  Expect(Run({At(128, {2, 3, 4}), At(64, {2, 3, 4})},
             RopeOperand{At(64, {2, 1, 4}), At(96, {2, 1, 4})}),
         "q_out: must not overlap k");
  Expect(Run({At(128, {2, 3, 4}), At(64, {2, 3, 4})},
             RopeOperand{At(256, {2, 1, 4}), At(70, {2, 1, 4})}),
         "k_out: must not overlap q_out");
}

TEST_F(RopeRefusals, ElsewhereThanTheTable) {
  RopeOperand q = Whole();
  q.in.device = {DeviceType::kCuda, 0};
  Expect(Run(q), "q: expected on cpu, got cuda:0");
}

TEST(Rope, NoTokensAndNoHeads) {
  const auto table = RopeTable::Make({}, {4, 16, 10000, {}});
  ASSERT_TRUE(table.ok());
  const auto run = [&](int64_t tokens, int64_t heads) {
    static int64_t positions[2] = {};
    const TensorView view(nullptr, DType::kBF16, {tokens, heads, 4});
    return Rope({}, *table, RopePairs::kHalves, ConstTensorView(positions, DType::kI64, {tokens}),
                {view, view}, {});
  };
  EXPECT_TRUE(run(0, 32).ok());
  EXPECT_TRUE(run(2, 0).ok());
}

}  // namespace
}  // namespace fuseblock::testing
