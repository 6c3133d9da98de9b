// Where in one range of addresses each block rests. Owns: the places. Never: memory; the plan of a
// run places blocks with the same code as the run, and so finds the same fragmentation.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace strata::memory {

struct Range {
  int64_t begin;
  int64_t end;
};

// Best fit, lowest address first; free neighbours become one.
// Invariants: taken and free ranges cover [0, capacity) without overlap; what was ever taken counts
// as resident until trim(), because pages stay with the process once they are written.
// Threads: one at a time.
class Arena {
 public:
  explicit Arena(int64_t capacity);

  // Offset of `size` > 0 bytes, a multiple of kStep; empty when no free range is large enough.
  std::optional<int64_t> take(int64_t size);
  // Returns the size that the block occupied. Requires: `offset` came from take().
  int64_t give_back(int64_t offset);
  // The free ranges that were resident; they are not any more.
  std::vector<Range> trim();

  int64_t taken_bytes() const { return taken_bytes_; }
  int64_t resident_bytes() const { return resident_bytes_; }
  int64_t peak_resident_bytes() const { return peak_resident_bytes_; }

  static constexpr int64_t kStep = 512;

 private:
  void add_free(int64_t begin, int64_t end);
  void remove_free(std::map<int64_t, int64_t>::iterator range);
  void touch(int64_t begin, int64_t end);

  std::map<int64_t, int64_t> free_;                // begin -> end
  std::set<std::pair<int64_t, int64_t>> by_size_;  // (size, begin) of the free ranges
  std::unordered_map<int64_t, int64_t> taken_;     // begin -> end
  std::map<int64_t, int64_t> resident_;            // begin -> end, disjoint, not adjacent
  int64_t taken_bytes_ = 0;
  int64_t resident_bytes_ = 0;
  int64_t peak_resident_bytes_ = 0;
};

}  // namespace strata::memory
