#include "server/engine/faulty_lane.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fuseblock {

void Faults::Inject(Device device, Fault fault, int launches) {
  std::lock_guard<std::mutex> lock(mutex_);
  State& state = devices_[DeviceName(device)];
  state.fault = fault;
  state.failing = launches;
}

void Faults::RefuseMemory(Device device) {
  std::lock_guard<std::mutex> lock(mutex_);
  devices_[DeviceName(device)].refuse_memory = true;
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
  devices_[DeviceName(device)].hold = false;
  changed_.notify_all();
}

void Faults::AwaitHeld(Device device, int launches) {
  std::unique_lock<std::mutex> lock(mutex_);
  State& state = devices_[DeviceName(device)];
  changed_.wait(lock, [&] { return state.held >= launches; });
}

int Faults::launches(Device device) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = devices_.find(DeviceName(device));
  return found == devices_.end() ? 0 : found->second.launches;
}

Fault Faults::OnLaunch(Device device) {
  std::unique_lock<std::mutex> lock(mutex_);
  State& state = devices_[DeviceName(device)];
  ++state.launches;
  ++state.held;
  changed_.notify_all();
  changed_.wait(lock, [&] { return !state.hold; });
  --state.held;
  if (state.lost) return Fault::kDeviceLost;
  if (state.failing == 0) return Fault::kNone;
  --state.failing;
  state.lost = state.fault == Fault::kDeviceLost;
  return state.fault;
}

class FaultyLane final : public Lane {
 public:
  FaultyLane(std::unique_ptr<Lane> inner, std::shared_ptr<Faults> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {}

  Device device() const override { return inner_->device(); }
  MemoryKind staging() const override { return inner_->staging(); }
  const Block* BlockOf(const ServedBlock& block) const override { return inner_->BlockOf(block); }
  absl::Status Reserve(const LaneBytes& bytes) override {
    if (absl::Status s = faults_->OnReserve(device()); !s.ok()) return s;
    return inner_->Reserve(bytes);
  }
  size_t device_bytes() const override { return inner_->device_bytes(); }
  absl::Status Capture(const LaneBatch& batch, std::shared_ptr<BlockGraphs>* graphs) override {
    return inner_->Capture(batch, graphs);
  }
  GraphCount graphs() const override { return inner_->graphs(); }

  absl::Status Run(const LaneBatch& batch, LaneTimes* times) override {
    const Fault fault = faults_->OnLaunch(device());
    if (fault == Fault::kNone) return inner_->Run(batch, times);
    // A device that fails half-way leaves anything at all behind.
    for (const TensorView& output : batch.outputs) {
      if (output.data != nullptr) std::memset(output.data, 0xEE, BytesOf(output));
    }
    const std::string where = absl::StrCat("injected on ", DeviceName(device()));
    switch (fault) {
      case Fault::kDeviceLost:
        return absl::UnavailableError(absl::StrCat("device lost, ", where));
      case Fault::kOutOfMemory:
        return absl::ResourceExhaustedError(absl::StrCat("out of memory, ", where));
      default:
        return absl::InternalError(absl::StrCat("launch failure, ", where));
    }
  }

 private:
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
