#include "strata/data/store/waiting_rows.h"

#include <numeric>
#include <utility>

#include "strata/data/random.h"
#include "strata/data/store/token_store.h"

namespace strata::data {

void WaitingRows::add(const ExampleView& row) {
  ++count_;
  if (writer_) return writer_->add(row);
  few_.push_back(row.copy());
  few_bytes_ += sizeof(Example) + 2 * row.ids.size_bytes() + row.lengths.size_bytes();
  if (few_bytes_ > kRoomBytes) spill();
}

void WaitingRows::spill() {
  file_.emplace(scratch_path());
  writer_.emplace(*file_);
  for (const Example& row : std::exchange(few_, {})) writer_->add(row);
}

void WaitingRows::replay(const std::vector<int64_t>& order, const Preparation::Keep& take) {
  if (writer_) {
    writer_->finish({}, /*syncs=*/false);
    const TokenStore rows = TokenStore::map(file_->path());
    for (const int64_t i : order) take(rows[static_cast<size_t>(i)]);
  } else {
    for (const int64_t i : order) take(few_[static_cast<size_t>(i)]);
  }
  *this = {};
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
