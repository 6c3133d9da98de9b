// The watch over NCCL's collectives: its thread and what it ends. Never: a collective.
#include "strata/comm/nccl_watch.h"

#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <atomic>
#include <system_error>

#include "strata/base/error.h"

namespace strata::comm {
namespace {

constexpr std::chrono::seconds kPeriod(1);
// For the end of a communicator; what it waits for then does not come.
constexpr std::chrono::seconds kPatience(3);
// A rank that is done with all collectives may end before this one sees that they are over.
constexpr std::chrono::seconds kAlone(5);

int64_t monotonic_ms_of(std::chrono::steady_clock::time_point at) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(at.time_since_epoch()).count();
}

}  // namespace

// Shared with the thread that ends the communicator, which may outlive the watch.
struct NcclWatch::Ending {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_over = false;

  void finish() {
    {
      const std::lock_guard lock(mutex);
      is_over = true;
    }
    changed.notify_all();
  }
  void await() {
    // A rank that hangs keeps all communicators that it is in from ending.
    static std::atomic<bool> has_given_up = false;
    const auto patience = has_given_up ? std::chrono::seconds(0) : kPatience;
    std::unique_lock lock(mutex);
    if (!changed.wait_for(lock, patience, [this] { return is_over; })) has_given_up = true;
  }
};

NcclWatch::NcclWatch(NcclWatched watched)
    : watched_(std::move(watched)), thread_([this] { watch(); }) {}

NcclWatch::~NcclWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  wakes_.notify_one();
  thread_.join();
  if (failure_.empty() && is_orderly_) {
    ncclCommDestroy(watched_.communicator);
    return;
  }
  // An orderly end would wait for those that may be gone.
  if (!ending_) ending_ = abort_aside();
  ending_->await();
}

std::shared_ptr<NcclWatch::Ending> NcclWatch::abort_aside() const {
  auto ending = std::make_shared<Ending>();
  const auto work = [ending, communicator = watched_.communicator, device = watched_.device] {
    try {
      const c10::cuda::CUDAGuard on_device(device);
      ncclCommAbort(communicator);
    } catch (const std::exception&) {
      // An error of the device itself, which has no work any more.
    }
    ending->finish();
  };
  try {
    std::thread(work).detach();
  } catch (const std::system_error&) {  // no more threads
    work();
  }
  return ending;
}

void NcclWatch::begin(const char* collective) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw CommError("{}", failure_);
  running_.push_back({collective, ++number_, nullptr, Clock::now()});
}

void NcclWatch::is_over_at(std::shared_ptr<const c10::cuda::CUDAEvent> done) {
  const std::lock_guard lock(mutex_);
  if (!running_.empty()) running_.back().done = std::move(done);  // empty: the watch has ended
}

void NcclWatch::require_alive() const {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw CommError("{}", failure_);
}

void NcclWatch::forget_ended() {
  const auto is_over = [](const Running& one) { return one.done && one.done->query(); };
  const size_t before = running_.size();
  while (!running_.empty() && is_over(running_.front())) running_.pop_front();
  // The host runs ahead: what it enqueued long ago may begin only now.
  if (running_.size() < before && !running_.empty()) running_.front().since = Clock::now();
}

bool NcclWatch::is_left_alone() {
  const Clock::time_point now = Clock::now();
  if (lost_at_ == Clock::time_point{}) {
    if (watched_.has_lost_peer()) lost_at_ = now;
    return false;
  }
  return now - std::max(lost_at_, running_.front().since) >= kAlone;
}

std::string NcclWatch::problem() {
  ncclResult_t error = ncclSuccess;
  if (ncclCommGetAsyncError(watched_.communicator, &error) != ncclSuccess) {
    error = ncclInternalError;
  }
  const char* collective = running_.empty() ? "of NCCL" : running_.front().collective;
  if (error != ncclSuccess && error != ncclInProgress) {
    return fmt::format(
        "collective {} of rank {}: found an error of NCCL ({}), expected every rank to take part; "
        "look at the first failing rank's message, or set NCCL_DEBUG=INFO",
        collective, watched_.rank, ncclGetErrorString(error));
  }
  forget_ended();
  if (running_.empty()) return "";
  const auto taken = Clock::now() - running_.front().since;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(taken).count();
  if (is_left_alone()) {
    return fmt::format(
        "collective {} of rank {}: found it running for {} s although a rank of group {} has "
        "ended, expected every rank to take part; look at the first failing rank's message",
        running_.front().collective, watched_.rank, seconds, watched_.group);
  }
  if (taken < watched_.timeout) return "";
  return fmt::format(
      "collective {} of rank {}: found it under way for {} s, expected every rank to take part "
      "within ddp_timeout; look at the first failing rank's message, or raise ddp_timeout",
      running_.front().collective, watched_.rank, seconds);
}

void NcclWatch::watch() {
  std::unique_lock lock(mutex_, std::defer_lock);
  const auto tell = [this] {
    if (watched_.status == nullptr) return;
    Status::DeviceWait wait{"", watched_.group, 0, 0};
    if (!running_.empty()) {
      const Running& oldest = running_.front();
      wait = {oldest.collective, watched_.group, oldest.number, monotonic_ms_of(oldest.since)};
    }
    watched_.status->tell_device_wait(this, wait);
  };
  try {
    const c10::cuda::CUDAGuard on_device(watched_.device);
    lock.lock();
    while (!wakes_.wait_for(lock, kPeriod, [&] { return is_ending_; })) {
      std::string found = problem();
      tell();
      if (found.empty()) continue;
      failure_ = std::move(found);
      lock.unlock();
      // Frees the GPU, and with it the host that waits for it; its next call says why.
      ending_ = abort_aside();
      lock.lock();
      break;
    }
  } catch (const std::exception&) {
    // An error of the GPU itself: the thread that computes meets it too, and ends the run with it.
  }
  if (!lock.owns_lock()) lock.lock();
  running_.clear();
  tell();
}

}  // namespace strata::comm
