// Tokenizes batches of rows on several threads. Never decides what becomes of a row.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "strata/data/rows/row_tokenizer.h"

namespace strata::data {

// What became of a row: its tokens, or why there are none.
struct RowOutcome {
  TokenizedRow row;
  bool is_long = false;  // more tokens than max_length
  RowPlace place;
  std::exception_ptr error;
};

// Threads: start() and wait() by one thread. With one thread in all, start() does the work.
// Invariants: an outcome has the place of its row, whichever thread made it.
class RowPool {
 public:
  // `tokenize` is called by any thread. What it throws is the row's error.
  RowPool(std::function<void(const Row&, RowOutcome&)> tokenize, int threads);
  ~RowPool();
  RowPool(const RowPool&) = delete;
  RowPool& operator=(const RowPool&) = delete;

  // Requires: what was started before has been waited for.
  void start(std::vector<Row> rows);
  // The outcomes of the rows that were started last; none where nothing was.
  std::vector<RowOutcome> wait();

 private:
  void work(const std::stop_token& stop);
  bool take_some(size_t& begin, size_t& end);
  void tokenize(size_t begin, size_t end);

  std::function<void(const Row&, RowOutcome&)> tokenize_;
  std::vector<Row> rows_;
  std::vector<RowOutcome> outcomes_;
  std::mutex mutex_;
  std::condition_variable_any has_rows_;
  std::condition_variable is_done_;
  size_t next_ = 0;                    // the first row that nobody has taken
  size_t num_done_ = 0;                // rows
  std::vector<std::jthread> threads_;  // the last member: they end before what they use
};

}  // namespace strata::data
