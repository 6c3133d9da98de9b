// How much memory this process has in RAM, now and at its peak over a stretch of time. Never: what
// it is used for.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace strata {

// Bytes, from /proc/self/statm; 0 where there is none.
int64_t resident_bytes();

// Watches from construction to stop(). Looks every few milliseconds, and at the kernel's own high
// water mark, which misses nothing but knows only the highest of the whole process.
class PeakWatch {
 public:
  PeakWatch();
  ~PeakWatch() { stop(); }
  PeakWatch(const PeakWatch&) = delete;
  PeakWatch& operator=(const PeakWatch&) = delete;

  int64_t start_bytes() const { return start_bytes_; }
  // The peak in bytes since construction.
  int64_t stop();

 private:
  int64_t start_bytes_;
  int64_t mark_at_start_;
  std::atomic<int64_t> peak_bytes_;
  std::atomic<bool> is_ending_{false};
  std::thread thread_;
};

}  // namespace strata
