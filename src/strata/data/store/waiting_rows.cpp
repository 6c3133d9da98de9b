#include "strata/data/store/waiting_rows.h"

#include <numeric>

#include "strata/data/random.h"
#include "strata/data/store/token_store.h"

namespace strata::data {

WaitingRows::WaitingRows() : file_(scratch_path()), writer_(file_) {}

void WaitingRows::add(const ExampleView& row) {
  writer_.add(row);
  ++count_;
}

void WaitingRows::replay(const std::vector<int64_t>& order, const Preparation::Keep& take) {
  writer_.finish({}, /*syncs=*/false);
  const TokenStore rows = TokenStore::map(file_.path());
  for (const int64_t i : order) take(rows[static_cast<size_t>(i)]);
}

std::vector<int64_t> count_up(int64_t size) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), int64_t{0});
  return order;
}

std::vector<int64_t> shuffled(std::vector<int64_t> order, uint64_t seed) {
  std::vector<int64_t> result;
  result.reserve(order.size());
  for (const int64_t i : NumpyGenerator(seed).permutation(static_cast<int64_t>(order.size()))) {
    result.push_back(order[static_cast<size_t>(i)]);
  }
  return result;
}

}  // namespace strata::data
