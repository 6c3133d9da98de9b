// Watches the collectives of one NCCL communicator from a thread of its own. A GPU waits for a lost
// rank for ever, and the host behind it, where nothing looks at a clock: this ends the communicator
// instead. Owns: the thread, the communicator's end. Never: starts a collective. Only in builds
// with CUDA.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <c10/core/Device.h>
#include <c10/cuda/CUDAEvent.h>
#include <nccl.h>

namespace strata::comm {

// Threads: begin(), is_over_at() and require_alive() from the one that starts collectives.
class NcclWatch {
 public:
  NcclWatch(ncclComm_t communicator, int rank, c10::Device device, std::chrono::seconds timeout);
  // Ends the communicator: in order, or where `is_orderly` was not said, without the others.
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  // A collective that is about to be enqueued: NCCL connects to others in the first ones, so that
  // already the host may wait for a lost rank. Throws as require_alive().
  void begin(const char* collective);
  // The one that began last has been enqueued and is over at `done`.
  void is_over_at(std::shared_ptr<const c10::cuda::CUDAEvent> done);
  // Throws CommError once a collective has failed or taken too long. Nothing may be asked of the
  // communicator then.
  void require_alive() const;
  // The next collectives need not be waited for: the others are there to the end.
  void end_orderly() { is_orderly_ = true; }

 private:
  struct Running {
    const char* collective;
    std::shared_ptr<const c10::cuda::CUDAEvent> done;  // none: not enqueued yet
    std::chrono::steady_clock::time_point since;
  };

  void watch();
  // Why the communicator must end; empty: it need not. Requires: mutex_ held.
  std::string problem();

  const ncclComm_t communicator_;
  const int rank_;
  const c10::Device device_;
  const std::chrono::seconds timeout_;
  bool is_orderly_ = false;

  mutable std::mutex mutex_;
  std::condition_variable wakes_;
  std::deque<Running> running_;
  std::string failure_;  // set: the communicator is gone
  bool is_ending_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace strata::comm
