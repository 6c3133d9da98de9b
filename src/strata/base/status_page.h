// What a rank is doing, on a page of memory that it may share with the launcher that watches it.
// Owns: the page's layout, writing and reading it. Never: what follows from a rank that hangs.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace strata {

// A text of up to 8 * kWords - 1 bytes, in words that another process may read while they change.
template <size_t kWords>
struct StatusText {
  std::atomic<uint64_t> words[kWords];

  void set(std::string_view text);
  std::string get() const;
};

// Threads: of the rank one at a time writes (two would make `version` even between them), another
// process reads at any time.
struct StatusPage {
  std::atomic<int32_t> process;           // of the rank, once it has taken the page; 0 before
  std::atomic<uint32_t> traces;           // threads that have written their stack
  std::atomic<int64_t> step;              // being computed, from 1; 0: before the first
  std::atomic<int64_t> waiting_since_ms;  // on the monotonic clock; 0: not waiting for other ranks
  std::atomic<uint64_t> number;           // of that collective in its group, from 1
  std::atomic<uint32_t> version;          // odd while the texts below change
  StatusText<6> phase;
  StatusText<3> collective;
  StatusText<3> group;

  // The same for a collective that the rank's GPU has not finished, for which the host may wait
  // without waiting in a collective of its own. Threads: of the rank any, one after the other.
  struct OfDevice {
    std::atomic<int64_t> since_ms;
    std::atomic<uint64_t> number;
    std::atomic<uint32_t> version;
    StatusText<3> collective;
    StatusText<3> group;
  } device;
};

// A moment of a page: the host's wait, else its GPU's.
struct StatusReading {
  int process = 0;
  int64_t step = 0;
  int64_t waiting_ms = 0;  // 0: not waiting
  uint64_t number = 0;
  std::string phase = {}, collective = {}, group = {};
};
StatusReading read_status(const StatusPage& page);

// The rank's side. Without a launcher that watches, a page that nobody reads.
// Threads: one at a time, as of the page.
class Status {
 public:
  Status();
  // Takes the page behind a descriptor that the launcher has opened; negative or no such page: as
  // above. The descriptor stays open.
  explicit Status(int descriptor);
  ~Status();
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;

  StatusPage& page() { return *page_; }
  void set_phase(std::string_view phase);
  void set_step(int64_t step) { page_->step.store(step, std::memory_order_relaxed); }

  // While it lives the rank waits for others in a collective.
  class Waiting {
   public:
    Waiting(Status& status, std::string_view collective, std::string_view group, uint64_t number);
    ~Waiting() { page_.waiting_since_ms.store(0, std::memory_order_release); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    StatusPage& page_;
  };

  // A collective that a GPU has been at since `since_ms` on monotonic_ms(); `group` lives as long
  // as it is told. Threads: any.
  struct DeviceWait {
    const char* collective;
    std::string_view group;
    uint64_t number;
    int64_t since_ms;
  };
  // What `watcher` sees of one group, in place of what it saw before; since_ms 0: nothing. Of all
  // groups the one that has lasted longest is on the page.
  void tell_device_wait(const void* watcher, const DeviceWait& wait);

 private:
  StatusPage* page_;
  std::unique_ptr<StatusPage> own_;
  std::mutex device_mutex_;
  std::map<const void*, DeviceWait> device_waits_;
};

// The size of the memory behind a page.
inline constexpr size_t kStatusBytes = 4096;
static_assert(sizeof(StatusPage) <= kStatusBytes);

// Milliseconds on the clock of `waiting_since_ms`.
int64_t monotonic_ms();

// The signal by which a thread of a rank is asked to write its stack: threads that block signals
// let it through.
int stack_trace_signal();

}  // namespace strata
