#include "strata/base/resident_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace strata {
namespace {

// The largest the process has ever been.
int64_t high_water_mark() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace

int64_t resident_bytes() {
  long long total = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  const bool is_read = std::fscanf(file, "%lld %lld", &total, &resident) == 2;
  std::fclose(file);
  return is_read ? static_cast<int64_t>(resident) * ::sysconf(_SC_PAGESIZE) : 0;
}

PeakWatch::PeakWatch()
    : start_bytes_(resident_bytes()), mark_at_start_(high_water_mark()), peak_bytes_(start_bytes_) {
  thread_ = std::thread([this] {
    while (!is_ending_) {
      peak_bytes_ = std::max(peak_bytes_.load(), resident_bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
}

int64_t PeakWatch::stop() {
  if (!thread_.joinable()) return peak_bytes_;
  is_ending_ = true;
  thread_.join();
  int64_t peak = std::max(peak_bytes_.load(), resident_bytes());
  const int64_t mark = high_water_mark();
  if (mark > mark_at_start_) peak = std::max(peak, mark);
  peak_bytes_ = peak;
  return peak;
}

}  // namespace strata
