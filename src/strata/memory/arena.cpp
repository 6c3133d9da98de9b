#include "strata/memory/arena.h"

#include <algorithm>

#include "strata/base/error.h"

namespace strata::memory {

Arena::Arena(int64_t capacity) { add_free(0, capacity / kStep * kStep); }

std::optional<int64_t> Arena::take(int64_t size) {
  size = (size + kStep - 1) / kStep * kStep;
  const auto fitting = by_size_.lower_bound({size, 0});
  if (fitting == by_size_.end()) return std::nullopt;
  const auto range = free_.find(fitting->second);
  const int64_t begin = range->first, end = range->second;
  remove_free(range);
  if (begin + size < end) add_free(begin + size, end);
  taken_.emplace(begin, begin + size);
  taken_bytes_ += size;
  touch(begin, begin + size);
  return begin;
}

int64_t Arena::give_back(int64_t offset) {
  const auto block = taken_.find(offset);
  if (block == taken_.end()) {
    throw InternalError("arena: found no block at {}, expected one; report this as a bug", offset);
  }
  int64_t begin = block->first, end = block->second;
  const int64_t size = end - begin;
  taken_.erase(block);
  taken_bytes_ -= size;
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == end) {
    end = next->second;
    remove_free(next++);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->second == begin) {
      begin = before->first;
      remove_free(before);
    }
  }
  add_free(begin, end);
  return size;
}

std::vector<Range> Arena::trim() {
  std::vector<Range> given_up;
  std::map<int64_t, int64_t> kept;
  for (const auto& [begin, end] : resident_) {
    auto range = free_.upper_bound(begin);
    if (range != free_.begin()) --range;
    int64_t at = begin;
    for (; range != free_.end() && range->first < end; ++range) {
      const Range free{std::max(range->first, begin), std::min(range->second, end)};
      if (free.begin >= free.end) continue;
      if (at < free.begin) kept.emplace(at, free.begin);
      given_up.push_back(free);
      resident_bytes_ -= free.end - free.begin;
      at = free.end;
    }
    if (at < end) kept.emplace(at, end);
  }
  resident_ = std::move(kept);
  return given_up;
}

void Arena::add_free(int64_t begin, int64_t end) {
  if (begin >= end) return;
  free_.emplace(begin, end);
  by_size_.emplace(end - begin, begin);
}

void Arena::remove_free(std::map<int64_t, int64_t>::iterator range) {
  by_size_.erase({range->second - range->first, range->first});
  free_.erase(range);
}

void Arena::touch(int64_t begin, int64_t end) {
  auto first = resident_.upper_bound(begin);
  if (first != resident_.begin()) {
    const auto before = std::prev(first);
    if (before->second >= end) return;  // the steady state
    if (before->second >= begin) {
      begin = before->first;
      first = before;
    }
  }
  while (first != resident_.end() && first->first <= end) {
    end = std::max(end, first->second);
    resident_bytes_ -= first->second - first->first;
    first = resident_.erase(first);
  }
  resident_.emplace(begin, end);
  resident_bytes_ += end - begin;
  peak_resident_bytes_ = std::max(peak_resident_bytes_, resident_bytes_);
}

}  // namespace strata::memory
