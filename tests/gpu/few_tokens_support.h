// What the tests of the feed-forward on Hopper share, of few and of many tokens: weights on the
// host and packed, lanes that call it, replays of captured calls.
#pragma once

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/base/half.h"
#include "kernels/feed_forward/feed_forward.h"
#include "tests/gpu/device_rows.h"

namespace fuseblock::testing {

inline constexpr float kFfnEps = 1e-5f;

struct Size {
  int64_t hidden, intermediate;
};

// A form of the feed-forward in a dtype; a dense one with or without biases.
struct Tested {
  FeedForwardForm form;
  bool biased;
  DType dtype;

  bool gated() const { return EntryOf(form).gated; }
  Activation activation() const { return EntryOf(form).activation; }
  std::string Name() const {
    const char* of = activation() == Activation::kSilu      ? ""
                     : activation() == Activation::kGeluErf ? "_erf"
                                                            : "_tanh";
    return absl::StrCat(EntryOf(form).kernel, of, biased ? "_biased_" : "_",
                        std::string(fuseblock::Name(dtype)));
  }
};

inline std::vector<Tested> AllTested() {
  std::vector<Tested> all;
  for (const FeedForwardFormEntry& entry : kFeedForwardForms) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      all.push_back({entry.form, false, dtype});
      if (!entry.gated) all.push_back({entry.form, true, dtype});
    }
  }
  return all;
}

// Uniform of that standard deviation, quickly: weights are large.
inline Tensor Uniform(DType dtype, int64_t rows, int64_t columns, double deviation, uint32_t seed) {
  Tensor tensor(dtype, rows, columns);
  const float scale = static_cast<float>(deviation * std::sqrt(3.0)) * 0x1p-31f;
  VisitFloat(dtype, [&](auto type) {
    uint32_t bits = seed * 2654435761u + 1;
    std::byte* at = tensor.Data(tensor.memory());
    for (int64_t i = 0; i < rows * columns; ++i, at += sizeof(type)) {
      bits ^= bits << 13;
      bits ^= bits >> 17;
      bits ^= bits << 5;
      const auto value =
          FromFloat<decltype(type)>(static_cast<float>(static_cast<int32_t>(bits)) * scale);
      std::memcpy(at, &value, sizeof(type));
    }
  });
  return tensor;
}

// A feed-forward path's weights on the host and, with the segments of its plan, on the GPU.
struct Ffn {
  Ffn(const Tested& of, const Size& size)
      : tested(of),
        norm(Uniform(of.dtype, 1, size.hidden, 0.2, 1)),
        gate(Uniform(of.dtype, of.gated() ? size.intermediate : 0, size.hidden,
                     1 / std::sqrt(size.hidden), 2)),
        up(Uniform(of.dtype, size.intermediate, size.hidden, 1 / std::sqrt(size.hidden), 3)),
        down(
            Uniform(of.dtype, size.hidden, size.intermediate, 1 / std::sqrt(size.intermediate), 4)),
        up_bias(Uniform(of.dtype, 1, size.intermediate, of.biased ? 1 : 0, 7)),
        down_bias(Uniform(of.dtype, 1, size.hidden, of.biased ? 1 : 0, 8)),
        device_norm(WithOnes(norm).Copy()),
        plan(FewTokens::PlanFor(kGpu, of.form, size.hidden, size.intermediate)) {
    weights.form = of.form;
    if (of.gated()) weights.gate = Prepared(gate, nullptr, 1);
    weights.up = Prepared(up, of.biased ? &up_bias : nullptr, 1);
    weights.down = Prepared(down, of.biased ? &down_bias : nullptr, plan.segments);
  }

  static Tensor& WithOnes(Tensor& norm) {
    for (int64_t i = 0; i < norm.columns(); ++i) norm.Set(0, i, 1 + norm.At(0, i));
    return norm;
  }
  static LinearWeight Prepared(const Tensor& weight, const Tensor* bias, int segments) {
    std::optional<ConstTensorView> bias_view;
    if (bias != nullptr) bias_view = HostVector(*bias);
    absl::StatusOr<LinearWeight> prepared = LinearWeight::Prepare(
        kGpu, HostView(weight), bias_view, WeightLayout::kOutIn, {}, segments);
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    return prepared.ok() ? *std::move(prepared) : LinearWeight();
  }
  DType dtype() const { return up.dtype(); }
  int64_t hidden() const { return up.columns(); }
  int64_t intermediate() const { return up.rows(); }

  Tested tested;
  Tensor norm, gate, up, down;
  Tensor up_bias, down_bias;  // zeros where there are none
  DeviceRows device_norm;
  FewTokensPlan plan;
  FeedForwardWeights weights;
};

// Calls on a stream of their own with a workspace of their own, as a lane has them.
class Lane {
 public:
  Lane(const Ffn& ffn, const FewTokens& few, int64_t rows = kFewTokensMax)
      : ffn_(ffn), few_(few), workspace_(GpuBuffer(FewTokensWorkspaceBytes(few, rows))) {}

  // Rows [first, first + count) of x. residual: null: none; on_path: with the norm and x.
  void Enqueue(const DeviceRows& x, const DeviceRows* residual, bool on_path, int64_t first,
               int64_t count, const TensorView& y) {
    FewTokensArgs args;
    args.weights = &few_;
    args.dtype = ffn_.dtype();
    args.x = *AsRows("x", ConstTensorView(x.view(first, count)));
    args.y = *AsRows("y", y);
    args.y_dtype = y.dtype;
    args.workspace = absl::MakeSpan(workspace_.data(), workspace_.size());
    if (on_path) {
      args.path.emplace();
      if (residual != nullptr) args.path->residual = residual->view(first, count);
      args.path->norm = ffn_.device_norm.vector();
      args.path->eps = kFfnEps;
    }
    ASSERT_EQ(WhyNotFewTokens(args), "");
    const absl::Status status = RunFewTokens(stream_.context(), args);
    ASSERT_TRUE(status.ok()) << status;
  }
  void Wait() const { stream_.Wait(); }
  const GpuStream& stream() const { return stream_; }

  // What the last call of `count` rows left in its workspace: n and the product as tensors.
  std::pair<Tensor, Tensor> Inner(int64_t count) const {
    const int width = FewTokensWidth(count);
    const int64_t n_bytes = int64_t{width} * ffn_.hidden() * 2;
    return {Untiled(0, width, count, ffn_.hidden()),
            Untiled(n_bytes, width, count, ffn_.intermediate())};
  }

 private:
  Tensor Untiled(int64_t offset, int width, int64_t count, int64_t columns) const {
    std::vector<std::byte> tiles(static_cast<size_t>(int64_t{width} * columns * 2));
    EXPECT_EQ(Gpu().copy_async(0, tiles.data(), workspace_.data() + offset, tiles.size(), nullptr),
              0);
    EXPECT_EQ(Gpu().stream_synchronize(0, nullptr), 0);
    Tensor out(ffn_.dtype(), count, columns);
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t chunk = 0; chunk < columns / 8; ++chunk) {
        std::memcpy(out.Data(out.memory()) + (row * columns + chunk * 8) * 2,
                    tiles.data() + FewTokensPlan::ActivationOffset(width, row, chunk), 16);
      }
    }
    return out;
  }

  const Ffn& ffn_;
  const FewTokens& few_;
  Buffer workspace_;
  GpuStream stream_;
};

inline FewTokens Packed(const Ffn& ffn) {
  absl::StatusOr<FewTokens> few = FewTokens::Pack(ffn.plan, ffn.weights);
  EXPECT_TRUE(few.ok()) << few.status();
  return few.ok() ? *std::move(few) : FewTokens();
}

// The outputs of `count` rows from `first` on.
inline Tensor Outputs(Lane& lane, const Ffn& ffn, const DeviceRows& x, const DeviceRows* residual,
                      bool on_path, DType y_dtype, int64_t first, int64_t count) {
  DeviceRows y(y_dtype, count, ffn.hidden());
  lane.Enqueue(x, residual, on_path, first, count, y.view());
  lane.Wait();
  return y.Read().Copy();
}

// Where rows [first, ..) of `all` and `part` differ first; empty: nowhere.
inline std::string Difference(const Tensor& all, int64_t first, const Tensor& part) {
  std::vector<int64_t> rows(static_cast<size_t>(part.rows()));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = first + static_cast<int64_t>(i);
  return FirstDifference(all.Gather(rows), part);
}

// A captured path, replayed on inputs that change, beside another lane that does the same.
class Replay {
 public:
  Replay(const Ffn& ffn, const FewTokens& few, int64_t rows)
      : lane_(ffn, few, rows),
        x_(ffn.dtype(), rows, ffn.hidden()),
        y_(ffn.dtype(), rows, ffn.hidden()) {
    void* stream = lane_.stream().get();
    size_t nodes = 0;
    EXPECT_EQ(Gpu().capture_begin(0, stream), 0);
    lane_.Enqueue(x_, nullptr, true, 0, rows, y_.view());
    EXPECT_EQ(Gpu().capture_end(0, stream, &graph_, &nodes), 0);
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  ~Replay() {
    if (graph_ != nullptr) Gpu().graph_destroy(0, graph_);
  }

  // One replay on those inputs, its outputs to `y` on the device.
  void Enqueue(const TensorView& x, std::byte* y) {
    void* stream = lane_.stream().get();
    const auto bytes = static_cast<size_t>(x.elements() * 2);
    EXPECT_EQ(Gpu().copy_async(0, x_.view().data, x.data, bytes, stream), 0);
    EXPECT_EQ(Gpu().graph_launch(0, graph_, stream), 0);
    EXPECT_EQ(Gpu().copy_async(0, y, y_.view().data, bytes, stream), 0);
  }
  void Wait() const { lane_.Wait(); }

 private:
  Lane lane_;
  DeviceRows x_, y_;
  void* graph_ = nullptr;
};

// How many replays, and on what.
struct Replays {
  int64_t count;      // on two lanes together
  int64_t per_round;  // of each lane, between looks at the results
  int64_t rows;       // of a replay
  int64_t inputs;     // that replays take in turn
  int64_t (*input)(int64_t round, int64_t i, int64_t lane);  // which of them
};

// Replays on two lanes side by side; how many differ from `expected`, which has the rows of all
// inputs.
inline int64_t WrongReplays(const Ffn& ffn, const FewTokens& few, const DeviceRows& x,
                            const Tensor& expected, const Replays& replays) {
  const int64_t rows = replays.rows;
  const auto bytes = static_cast<size_t>(rows * ffn.hidden() * 2);
  Replay first(ffn, few, rows), second(ffn, few, rows);
  Replay* lanes[] = {&first, &second};
  const Buffer out = GpuBuffer(bytes * static_cast<size_t>(2 * replays.per_round));
  std::vector<std::byte> got(out.size());
  int64_t wrong = 0;
  for (int64_t round = 0; round < replays.count / (2 * replays.per_round); ++round) {
    for (int64_t i = 0; i < replays.per_round; ++i) {
      for (int64_t lane = 0; lane < 2; ++lane) {
        lanes[lane]->Enqueue(x.view(replays.input(round, i, lane) * rows, rows),
                             out.data() + static_cast<size_t>(2 * i + lane) * bytes);
      }
    }
    first.Wait();
    second.Wait();
    EXPECT_EQ(Gpu().copy_async(0, got.data(), out.data(), out.size(), nullptr), 0);
    EXPECT_EQ(Gpu().stream_synchronize(0, nullptr), 0);
    for (int64_t i = 0; i < replays.per_round; ++i) {
      for (int64_t lane = 0; lane < 2; ++lane) {
        const int64_t input = replays.input(round, i, lane);
        wrong += std::memcmp(got.data() + static_cast<size_t>(2 * i + lane) * bytes,
                             expected.memory() + input * static_cast<int64_t>(bytes), bytes) != 0;
      }
    }
  }
  return wrong;
}

// Runs with every form in each 16-bit dtype. What the forms share (down, the norm, how K and the
// tokens are cut) is tested at all of the sizes with SwiGLU.
class HopperFfn : public ::testing::TestWithParam<Tested> {
 protected:
  void SetUp() override {
    const std::string reason = FewTokens::WhyNot(kGpu, GetParam().form, dtype(), 4096, 14336,
                                                 Rounding::kFused, GetParam().biased);
    ASSERT_EQ(reason, "") << "these tests need a Hopper GPU and code for sm_90a";
  }
  DType dtype() const { return GetParam().dtype; }
  bool all_sizes() const { return GetParam().form == FeedForwardForm::kSwiGlu; }
};

inline auto EveryForm() { return ::testing::ValuesIn(AllTested()); }
inline std::string FormName(const ::testing::TestParamInfo<Tested>& tested) {
  return tested.param.Name();
}

}  // namespace fuseblock::testing
