#include "server/engine/faulty_lane.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fuseblock {

void Faults::Inject(Device device, Fault fault, int launches, absl::Duration delay, Step step) {
  std::lock_guard<std::mutex> lock(mutex_);
  devices_[DeviceName(device)].planned[static_cast<int>(step)] = {fault, launches, delay};
}

void Faults::RefuseMemory(Device device, bool refuse) {
  std::lock_guard<std::mutex> lock(mutex_);
  devices_[DeviceName(device)].refuse_memory = refuse;
}

absl::Status Faults::OnReserve(Device device) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!devices_[DeviceName(device)].refuse_memory) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("no memory, injected on ", DeviceName(device)));
}

void Faults::Hold(Device device) {
  std::lock_guard<std::mutex> lock(mutex_);
  devices_[DeviceName(device)].hold = true;
}

void Faults::Release(Device device) {
  std::lock_guard<std::mutex> lock(mutex_);
  State& state = devices_[DeviceName(device)];
  state.hold = false;
  ++state.releases;
  changed_.notify_all();
}

void Faults::AwaitHeld(Device device, int launches) {
  std::unique_lock<std::mutex> lock(mutex_);
  State& state = devices_[DeviceName(device)];
  changed_.wait(lock, [&] { return state.held >= launches; });
}

void Faults::AwaitNoneHeld(Device device) {
  std::unique_lock<std::mutex> lock(mutex_);
  State& state = devices_[DeviceName(device)];
  changed_.wait(lock, [&] { return state.held == 0; });
}

int Faults::launches(Device device) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = devices_.find(DeviceName(device));
  return found == devices_.end() ? 0 : found->second.launches;
}

Fault Faults::OnStep(Device device, Step step, absl::Duration* delay) {
  std::unique_lock<std::mutex> lock(mutex_);
  State& state = devices_[DeviceName(device)];
  Planned& planned = state.planned[static_cast<int>(step)];
  const auto hold_while = [&](auto&& holds, absl::Time until) {
    if (!holds()) return;
    ++state.held;
    changed_.notify_all();
    while (holds()) clock_.WaitUntil(changed_, lock, until);
    --state.held;
    changed_.notify_all();
  };
  if (step == Step::kRun) {
    ++state.launches;
    hold_while([&] { return state.hold; }, absl::InfiniteFuture());
  }
  Fault fault = Fault::kNone;
  if (state.lost) {
    fault = Fault::kDeviceLost;
  } else if (planned.failing > 0) {
    --planned.failing;
    fault = planned.fault;
    state.lost = fault == Fault::kDeviceLost;
  }
  if (fault == Fault::kHang) {
    const int releases = state.releases;
    hold_while([&] { return state.releases == releases; }, absl::InfiniteFuture());
  }
  if (fault == Fault::kSlowCopy) {
    *delay = planned.delay;
    const absl::Time until = clock_.Now() + *delay;
    hold_while([&] { return clock_.Now() < until; }, until);
  }
  return fault;
}

absl::Status StatusOf(Fault fault, Device device) {
  const std::string where = absl::StrCat("injected on ", DeviceName(device));
  switch (fault) {
    case Fault::kDeviceLost:
      return absl::UnavailableError(absl::StrCat("device lost, ", where));
    case Fault::kOutOfMemory:
      return absl::ResourceExhaustedError(absl::StrCat("out of memory, ", where));
    case Fault::kLaunchFailure:
      return absl::InternalError(absl::StrCat("launch failure, ", where));
    case Fault::kNone:
    case Fault::kHang:
    case Fault::kSlowCopy:
    case Fault::kWrongResult:
      break;
  }
  return absl::OkStatus();
}

// A device that fails half-way leaves anything at all behind.
void Spoil(const LaneBatch& batch) {
  for (const TensorView& output : batch.outputs) {
    if (output.data != nullptr) std::memset(output.data, 0xEE, BytesOf(output));
  }
}

class FaultyLane final : public Lane {
 public:
  FaultyLane(std::unique_ptr<Lane> inner, std::shared_ptr<Faults> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {}

  Device device() const override { return inner_->device(); }
  MemoryKind staging() const override { return inner_->staging(); }
  const Block* BlockOf(const ServedBlock& block) const override { return inner_->BlockOf(block); }
  ParallelFor parallel_for() override { return inner_->parallel_for(); }
  absl::Status Reserve(const LaneBytes& bytes) override {
    if (absl::Status s = faults_->OnReserve(device()); !s.ok()) return s;
    if (absl::Status s = Meet(Step::kReserve); !s.ok()) return s;
    return inner_->Reserve(bytes);
  }
  size_t device_bytes() const override { return inner_->device_bytes(); }
  size_t host_bytes() const override { return inner_->host_bytes(); }
  absl::Status Capture(const LaneBatch& batch, std::shared_ptr<BlockGraphs>* graphs) override {
    if (absl::Status s = Meet(Step::kCapture); !s.ok()) return s;
    return inner_->Capture(batch, graphs);
  }
  GraphCount graphs() const override { return inner_->graphs(); }
  void CountGraphsIn(MemoryGauge* gauge) override { inner_->CountGraphsIn(gauge); }

  absl::Status Run(const LaneBatch& batch, LaneTimes* times) override {
    absl::Duration delay;
    const Fault fault = faults_->OnStep(device(), Step::kRun, &delay);
    absl::Status status = StatusOf(fault, device());
    if (status.ok()) status = inner_->Run(batch, times);
    if (!status.ok() || fault == Fault::kWrongResult) Spoil(batch);
    times->h2d += delay;
    return status;
  }

 private:
  absl::Status Meet(Step step) {
    absl::Duration delay;
    return StatusOf(faults_->OnStep(device(), step, &delay), device());
  }

  const std::unique_ptr<Lane> inner_;
  const std::shared_ptr<Faults> faults_;
};

LaneFactory WithFaults(LaneFactory inner, std::shared_ptr<Faults> faults) {
  return [inner = std::move(inner), faults = std::move(faults)](
             Device device, int cpu_threads) -> absl::StatusOr<std::unique_ptr<Lane>> {
    absl::StatusOr<std::unique_ptr<Lane>> lane = inner(device, cpu_threads);
    if (!lane.ok()) return lane;
    return std::make_unique<FaultyLane>(*std::move(lane), faults);
  };
}

}  // namespace fuseblock
