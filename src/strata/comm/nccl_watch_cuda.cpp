// The watch over NCCL's collectives: its thread and what it ends. Never: a collective.
#include "strata/comm/nccl_watch.h"

#include <c10/cuda/CUDAGuard.h>

#include "strata/base/error.h"

namespace strata::comm {
namespace {

constexpr std::chrono::seconds kPeriod(1);

}  // namespace

NcclWatch::NcclWatch(ncclComm_t communicator, int rank, c10::Device device,
                     std::chrono::seconds timeout)
    : communicator_(communicator), rank_(rank), device_(device), timeout_(timeout), thread_([this] {
        watch();
      }) {}

NcclWatch::~NcclWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  wakes_.notify_one();
  thread_.join();
  if (!failure_.empty()) return;  // it has ended
  if (is_orderly_) {
    ncclCommDestroy(communicator_);
  } else {
    ncclCommAbort(communicator_);  // an orderly end would wait for those that may be gone
  }
}

void NcclWatch::begin(const char* collective) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw CommError("{}", failure_);
  running_.push_back({collective, nullptr, std::chrono::steady_clock::now()});
}

void NcclWatch::is_over_at(std::shared_ptr<const c10::cuda::CUDAEvent> done) {
  const std::lock_guard lock(mutex_);
  if (!running_.empty()) running_.back().done = std::move(done);  // empty: the watch has ended
}

void NcclWatch::require_alive() const {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw CommError("{}", failure_);
}

std::string NcclWatch::problem() {
  ncclResult_t error = ncclSuccess;
  if (ncclCommGetAsyncError(communicator_, &error) != ncclSuccess) error = ncclInternalError;
  const char* collective = running_.empty() ? "of NCCL" : running_.front().collective;
  if (error != ncclSuccess && error != ncclInProgress) {
    return fmt::format(
        "collective {} of rank {}: found an error of NCCL ({}), expected every rank to take part; "
        "look at the first failing rank's message, or set NCCL_DEBUG=INFO",
        collective, rank_, ncclGetErrorString(error));
  }
  const auto is_over = [](const Running& one) { return one.done && one.done->query(); };
  while (!running_.empty() && is_over(running_.front())) running_.pop_front();
  if (running_.empty()) return "";
  const auto taken = std::chrono::steady_clock::now() - running_.front().since;
  if (taken < timeout_) return "";
  return fmt::format(
      "collective {} of rank {}: found it under way for {} s, expected every rank to take part "
      "within ddp_timeout; look at the first failing rank's message, or raise ddp_timeout",
      running_.front().collective, rank_,
      std::chrono::duration_cast<std::chrono::seconds>(taken).count());
}

void NcclWatch::watch() {
  const c10::cuda::CUDAGuard on_device(device_);
  std::unique_lock lock(mutex_);
  try {
    while (!wakes_.wait_for(lock, kPeriod, [&] { return is_ending_; })) {
      std::string found = problem();
      if (found.empty()) continue;
      failure_ = std::move(found);
      // Frees the GPU, and with it the host that waits for it; its next call says why.
      ncclCommAbort(communicator_);
      break;
    }
  } catch (const std::exception&) {
    // An error of the GPU itself: the thread that computes meets it too, and ends the run with it.
  }
  running_.clear();
}

}  // namespace strata::comm
