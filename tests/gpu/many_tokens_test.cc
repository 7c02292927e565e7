// The feed-forward of more than 128 tokens on Hopper, by the kernels for many and by blocks of
// those for few: a row has the bits that few tokens give it, whose stages are held against FP64, at
// any number of tokens, run after run and beside another stream.
#include "kernels/linear/linear_packed.h"
#include "tests/gpu/few_tokens_support.h"

namespace fuseblock::testing {
namespace {

class GpuManyTokens : public HopperFfn {};
INSTANTIATE_TEST_SUITE_P(Forms, GpuManyTokens, EveryForm(), FormName);

// All rows as the kernels for few tokens give them, in calls of up to `at_once`.
Tensor ByBlocks(const Ffn& ffn, const FewTokens& few, const DeviceRows& x,
                const DeviceRows* residual, DType y_dtype, int64_t rows,
                int64_t at_once = kFewTokensMax) {
  Lane lane(ffn, few);
  DeviceRows y(y_dtype, rows, ffn.hidden());
  for (int64_t first = 0; first < rows; first += at_once) {
    const int64_t count = std::min<int64_t>(at_once, rows - first);
    lane.Enqueue(x, residual, true, first, count, y.view(first, count));
    lane.Wait();
  }
  return y.Read().Copy();
}

TEST_P(GpuManyTokens, ARowHasTheBitsThatFewTokensGiveIt) {
  constexpr int64_t kRows = 2100;
  // Tiles without a tail and with one, groups that fill a part's halves unevenly, one segment and
  // two, tiles of two panels and of four.
  for (const Size& size :
       {Size{64, 128}, Size{256, 28672}, Size{576, 1536}, Size{2048, 8192}, Size{2560, 6912},
        Size{3584, 18944}, Size{4096, 14336}, Size{8192, 28672}}) {
    if (!all_sizes() && size.hidden > 2048) continue;
    const Ffn ffn(GetParam(), size);
    const FewTokens few = Packed(ffn);
    const DeviceRows x(Uniform(dtype(), kRows, size.hidden, 1, 5));
    const DeviceRows residual(Uniform(dtype(), kRows, size.hidden, 1, 6));
    Lane lane(ffn, few, kRows);
    for (const DType y_dtype : {DType::kF32, dtype()}) {
      const Tensor expected = ByBlocks(ffn, few, x, &residual, y_dtype, kRows);
      for (const int64_t count : {129, 200, 256, 257, 300, 512, 700, 1030, 2100}) {
        const int64_t first = (kRows - count) / 3;
        const Tensor got = Outputs(lane, ffn, x, &residual, true, y_dtype, first, count);
        ASSERT_EQ(Difference(expected, first, got), "")
            << size.hidden << "/" << size.intermediate << ", " << count << " rows from " << first
            << ", y " << std::string(Name(y_dtype));
      }
    }
  }
}

// Small weights, whose tokens are cut into blocks: on both sides of every block's border and of
// every change of their widths and of the kernels, as the row alone.
TEST_P(GpuManyTokens, ARowHasTheBitsThatItHasAloneInBlocksOfTokens) {
  constexpr int64_t kRows = 1000;
  constexpr int64_t kFirst = 37;
  for (const Size& size : {Size{64, 128}, Size{576, 1536}, Size{2048, 8192}}) {
    if (!all_sizes() && size.hidden > 576) continue;
    const int64_t rows = size.hidden > 576 ? 300 : kRows;
    const Ffn ffn(GetParam(), size);
    const FewTokens few = Packed(ffn);
    const DeviceRows x(Uniform(dtype(), rows, size.hidden, 1, 5));
    const DeviceRows residual(Uniform(dtype(), rows, size.hidden, 1, 6));
    Lane lane(ffn, few, rows);
    for (const DType y_dtype : {DType::kF32, dtype()}) {
      const Tensor alone = ByBlocks(ffn, few, x, &residual, y_dtype, rows, 1);
      for (const int64_t count :
           {63,  64,  65,  71,  127, 128, 129, 191, 192, 193, 200, 255, 256, 257, 319,
            320, 321, 383, 384, 385, 512, 513, 640, 641, 704, 705, 768, 896, 897, 963}) {
        if (kFirst + count > rows) continue;
        const Tensor got = Outputs(lane, ffn, x, &residual, true, y_dtype, kFirst, count);
        ASSERT_EQ(Difference(alone, kFirst, got), "")
            << size.hidden << "/" << size.intermediate << ", " << count << " rows, y "
            << std::string(Name(y_dtype));
      }
    }
  }
}

// Every kernel for few tokens and for many, with one product of 64 rows and with two, small enough
// for compute-sanitizer: cut for a GPU of few multiprocessors, for which these sizes are large, and
// for this one.
TEST_P(GpuManyTokens, SmallFeedForwards) {
  constexpr int64_t kRows = 300;
  const struct {
    Size size;
    int multiprocessors;
  } cases[] = {{{64, 128}, 2},    {{64, 128}, 132},  {{576, 1536}, 10},
               {{576, 1536}, 20}, {{576, 1536}, 40}, {{576, 1536}, 132}};
  for (const auto& [size, multiprocessors] : cases) {
    if (!all_sizes() && size.hidden > 64) continue;
    Ffn ffn(GetParam(), size);
    ffn.plan = PlanFewTokens(GetParam().form, size.hidden, size.intermediate,
                             std::min(multiprocessors, ffn.plan.multiprocessors));
    const FewTokens few = Packed(ffn);
    const DeviceRows x(Uniform(dtype(), kRows, size.hidden, 1, 5));
    const DeviceRows residual(Uniform(dtype(), kRows, size.hidden, 1, 6));
    Lane lane(ffn, few, kRows);
    const Tensor expected = ByBlocks(ffn, few, x, &residual, dtype(), kRows);
    for (const int64_t count : {1, 16, 17, 64, 65, 129, 300}) {
      const Tensor got = Outputs(lane, ffn, x, &residual, true, dtype(), kRows - count, count);
      EXPECT_EQ(Difference(expected, kRows - count, got), "")
          << size.hidden << "/" << size.intermediate << " on " << ffn.plan.multiprocessors
          << " multiprocessors, " << count << " rows";
    }
  }
}

// Without norm and residual stream, and with x alone on the path.
TEST_P(GpuManyTokens, TheProductAloneHasThoseBitsToo) {
  constexpr int64_t kRows = 300;
  const Size size{4096, 14336};
  const Ffn ffn(GetParam(), size);
  const FewTokens few = Packed(ffn);
  const DeviceRows x(Uniform(dtype(), kRows, size.hidden, 1, 5));
  Lane lane(ffn, few, kRows);
  for (const bool on_path : {false, true}) {
    const Tensor all = Outputs(lane, ffn, x, nullptr, on_path, DType::kF32, 0, kRows);
    for (const int64_t first : {0, 100, 172}) {
      const Tensor part = Outputs(lane, ffn, x, nullptr, on_path, DType::kF32, first, 128);
      EXPECT_EQ(Difference(all, first, part), "") << "from " << first << ", path " << on_path;
    }
  }
}

// Where K is one segment, down may be the library's product of the plain weight.
TEST_P(GpuManyTokens, TheLibrarysDownHasThoseBitsToo) {
  if (!all_sizes())
    return;  // down is the same for every form, and the library's for none with a bias
  constexpr int64_t kRows = 2100;
  for (const Size& size : {Size{5120, 13824}, Size{8192, 28672}}) {
    const Ffn ffn(GetParam(), size);
    ASSERT_EQ(ffn.plan.segments, 1);
    FewTokens few = Packed(ffn);
    const DeviceRows x(Uniform(dtype(), kRows, size.hidden, 1, 5));
    const DeviceRows residual(Uniform(dtype(), kRows, size.hidden, 1, 6));
    Lane lane(ffn, few, kRows);
    // With a residual stream the kernels' own is taken.
    for (const DeviceRows* with : {static_cast<const DeviceRows*>(nullptr), &residual}) {
      few.library_down = nullptr;
      const Tensor expected = ByBlocks(ffn, few, x, with, dtype(), kRows);
      few.library_down = ffn.weights.down.packed().plan;
      for (const int64_t count : {1, 128, 129, 256, 300, 512, 513, 1030, 2100}) {
        const int64_t first = (kRows - count) / 3;
        const Tensor got = Outputs(lane, ffn, x, with, true, dtype(), first, count);
        ASSERT_EQ(Difference(expected, first, got), "")
            << size.hidden << "/" << size.intermediate << ", " << count << " rows from " << first
            << (with == nullptr ? "" : ", with a residual");
      }
    }
  }
}

// Where two blocks share a tile, it depends on the moment which of them adds; where a call's blocks
// leave none for another's, which of them run side by side: many runs, on two lanes at a time.
TEST_P(GpuManyTokens, ManyReplaysOnTwoLanesWithoutAWrongBit) {
  constexpr int64_t kRows = 256;
  constexpr int64_t kInputs = 3;
  for (const Size& size : {Size{576, 1536}, Size{2048, 8192}, Size{4096, 14336}}) {
    if (!all_sizes() && size.hidden == 2048) continue;
    const Ffn ffn(GetParam(), size);
    const FewTokens few = Packed(ffn);
    const DeviceRows x(Uniform(dtype(), kRows * kInputs, size.hidden, 1, 5));
    const Tensor expected = ByBlocks(ffn, few, x, nullptr, dtype(), kRows * kInputs);
    const Replays replays{
        all_sizes() ? 1000 : 200, 10, kRows, kInputs,
        [](int64_t round, int64_t i, int64_t lane) { return (round + i + lane) % kInputs; }};
    EXPECT_EQ(WrongReplays(ffn, few, x, expected, replays), 0)
        << size.hidden << "/" << size.intermediate << ", of " << replays.count << " replays";
  }
}

}  // namespace
}  // namespace fuseblock::testing
