// Watches the collectives of one NCCL communicator from a thread of its own. A GPU waits for a lost
// rank forever, and so does the host that waits for it, as neither has a timeout: this aborts the
// communicator and tells the launcher what the GPU waits for. Owns: the thread, that abort.
// Never: starts a collective. Only in builds with CUDA.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <c10/core/Device.h>
#include <c10/cuda/CUDAEvent.h>
#include <nccl.h>

#include "strata/base/status_page.h"

namespace strata::comm {

// What is watched.
struct NcclWatched {
  ncclComm_t communicator = nullptr;
  int rank = 0;
  c10::Device device;
  std::chrono::seconds timeout;  // of one collective, once those before it are over
  std::string group = {};        // as the launcher knows it
  Status* status = nullptr;      // null: nobody is told; else outlives the watch
  // Whether a rank of the group has ended, as another transport sees it. Of the watch's thread.
  std::function<bool()> has_lost_peer = [] { return false; };
};

// Threads: begin() and is_over_at() from the one that starts collectives, require_alive() from any.
class NcclWatch {
 public:
  explicit NcclWatch(NcclWatched watched);
  // Ends the communicator: in order, or, where end_orderly() was not called, without the others.
  // That may take forever beside a rank that hangs, since NCCL's own threads wait for its
  // connections to close: after some seconds it is left to itself, and the process has to end by
  // _exit().
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  // A collective that is about to be enqueued: NCCL connects to others in the first ones, so that
  // already the host may wait for a lost rank. Throws as require_alive().
  void begin(const char* collective);
  // The one that began last has been enqueued and is over at `done`.
  void is_over_at(std::shared_ptr<const c10::cuda::CUDAEvent> done);
  // Throws CommError once a collective has failed or taken too long, which is known before a host
  // that waits for it is let go. Nothing may be asked of the communicator then.
  void require_alive() const;
  // The next collectives need not be waited for: the others are there to the end.
  void end_orderly() { is_orderly_ = true; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Running {
    const char* collective;
    uint64_t number;
    std::shared_ptr<const c10::cuda::CUDAEvent> done;  // none: not enqueued yet
    Clock::time_point since;                           // enqueued, later: those before it are over
  };
  struct Ending;

  void watch();
  // Why the communicator must end; empty: it need not. Requires: mutex_ held, as the next two.
  std::string problem();
  void forget_ended();
  bool is_left_alone();  // with the oldest collective, for which a rank is missing that has ended
  // Ends the communicator without the others, on a thread that nobody joins.
  std::shared_ptr<Ending> abort_aside() const;

  const NcclWatched watched_;
  bool is_orderly_ = false;

  mutable std::mutex mutex_;
  std::condition_variable wakes_;
  std::deque<Running> running_;
  uint64_t number_ = 0;          // of the collective that began last
  Clock::time_point lost_at_{};  // a rank was seen to have ended; none: no rank was
  std::string failure_;          // set: the communicator is gone
  bool is_ending_ = false;
  std::shared_ptr<Ending> ending_;  // the thread's until it is joined
  std::thread thread_;              // last: it uses the others
};

}  // namespace strata::comm
