#include "strata/data/row_pool.h"

#include <algorithm>
#include <utility>

namespace strata::data {

RowPool::RowPool(std::function<void(const Row&, RowOutcome&)> tokenize, int threads)
    : tokenize_(std::move(tokenize)) {
  if (threads < 2) return;
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
  }
}

RowPool::~RowPool() {
  const std::lock_guard lock(mutex_);
  next_ = rows_.size();  // what nobody has begun stays undone
}

void RowPool::start(std::vector<Row> rows) {
  {
    const std::lock_guard lock(mutex_);
    rows_ = std::move(rows);
    outcomes_.clear();
    outcomes_.resize(rows_.size());
    next_ = num_done_ = 0;
  }
  if (threads_.empty()) {
    next_ = num_done_ = rows_.size();
    return tokenize(0, rows_.size());
  }
  has_rows_.notify_all();
}

std::vector<RowOutcome> RowPool::wait() {
  std::unique_lock lock(mutex_);
  is_done_.wait(lock, [this] { return num_done_ == rows_.size(); });
  return std::exchange(outcomes_, {});
}

bool RowPool::take_some(size_t& begin, size_t& end) {
  if (next_ >= rows_.size()) return false;
  // If there are few rows, which are long, every thread takes one.
  const size_t some = std::clamp<size_t>(rows_.size() / (4 * threads_.size()), 1, 16);
  begin = next_;
  end = next_ = std::min(begin + some, rows_.size());
  return true;
}

void RowPool::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  size_t begin = 0, end = 0;
  while (has_rows_.wait(lock, stop, [&] { return take_some(begin, end); })) {
    lock.unlock();
    tokenize(begin, end);
    lock.lock();
    num_done_ += end - begin;
    if (num_done_ == rows_.size()) is_done_.notify_all();
  }
}

void RowPool::tokenize(size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    try {
      tokenize_(rows_[i], outcomes_[i]);
    } catch (...) {
      outcomes_[i].error = std::current_exception();
    }
    rows_[i].fields = nullptr;  // here, where every thread helps to free them
  }
}

}  // namespace strata::data
