#include "strata/data/pack.h"

#include <algorithm>
#include <deque>
#include <map>
#include <span>
#include <utility>

#include "strata/base/error.h"

namespace strata::data {
namespace {

constexpr int64_t kBatchRows = 1000;

void append(const ExampleView& piece, Example& to) {
  to.ids.insert(to.ids.end(), piece.ids.begin(), piece.ids.end());
  to.labels.insert(to.labels.end(), piece.labels.begin(), piece.labels.end());
}

// The pieces, by their numbers, of each row: best fit, longest first.
std::vector<std::vector<int64_t>> fit(const std::vector<int64_t>& lengths, int64_t max_length) {
  std::vector<int64_t> pieces = count_up(static_cast<int64_t>(lengths.size()));
  std::ranges::stable_sort(pieces, std::ranges::greater(),
                           [&](int64_t piece) { return lengths[static_cast<size_t>(piece)]; });
  std::vector<std::vector<int64_t>> bins;
  std::map<int64_t, std::deque<size_t>> open;  // free tokens -> bins, oldest first
  for (const int64_t piece : pieces) {
    const int64_t length = lengths[static_cast<size_t>(piece)];
    auto place = open.lower_bound(length);
    int64_t space = max_length;
    size_t bin = bins.size();
    if (place == open.end()) {
      bins.emplace_back();
    } else {
      space = place->first;
      bin = place->second.front();
      place->second.pop_front();
      if (place->second.empty()) open.erase(place);
    }
    bins[bin].push_back(piece);
    if (space > length) open[space - length].push_back(bin);
  }
  return bins;
}

}  // namespace

Packer::Packer(int64_t max_length, const std::string& strategy, Take take)
    : max_length_(max_length),
      is_wrapped_(strategy == "wrapped"),
      is_split_(strategy == "bfd_split"),
      take_(std::move(take)) {
  if (max_length < 1) {
    throw InternalError("packing: found max_length {}, expected at least 1", max_length);
  }
  if (!is_wrapped_ && !is_split_ && strategy != "bfd") {
    throw ConfigError(
        "packing_strategy: found \"{}\", expected \"bfd\", \"bfd_split\" or \"wrapped\"", strategy);
  }
}

void Packer::add(const ExampleView& row) {
  is_wrapped_ ? wrap(row) : cut(row);
  if (++num_rows_ == kBatchRows) end_batch();
}

void Packer::finish() { end_batch(); }

void Packer::wrap(const ExampleView& row) {
  for (size_t at = 0; at < row.ids.size();) {
    const size_t room = static_cast<size_t>(max_length_) - current_.ids.size();
    const size_t count = std::min(room, row.ids.size() - at);
    append({row.ids.subspan(at, count), row.labels.subspan(at, count), {}}, current_);
    at += count;
    if (count < room) continue;
    current_.lengths.assign(1, static_cast<int32_t>(max_length_));
    take_(std::exchange(current_, {}));
  }
}

// Pieces that fill a row come before all others, in the order of the rows.
void Packer::cut(const ExampleView& row) {
  const auto limit = static_cast<size_t>(max_length_);
  for (size_t begin = 0; begin < row.ids.size(); begin += limit) {
    const size_t count = std::min(limit, row.ids.size() - begin);
    const auto length = static_cast<int32_t>(count);
    const ExampleView piece(row.ids.subspan(begin, count), row.labels.subspan(begin, count),
                            std::span(&length, 1));
    if (count == limit) {
      Example full{.ids = {}, .labels = {}, .lengths = {length}};
      append(piece, full);
      take_(std::move(full));
    } else {
      rest_.add(piece);
      lengths_.push_back(length);
    }
    if (!is_split_) break;
  }
}

void Packer::end_batch() {
  num_rows_ = 0;
  if (!current_.ids.empty()) {
    current_.lengths.assign(1, static_cast<int32_t>(current_.ids.size()));
    take_(std::exchange(current_, {}));
  }
  if (!lengths_.empty()) pack_rest();
}

void Packer::pack_rest() {
  const std::vector<std::vector<int64_t>> bins = fit(std::exchange(lengths_, {}), max_length_);
  std::vector<int64_t> order;
  for (const std::vector<int64_t>& bin : bins) order.insert(order.end(), bin.begin(), bin.end());
  auto bin = bins.begin();
  Example packed;
  rest_.replay(order, [&](const ExampleView& piece) {
    append(piece, packed);
    packed.lengths.push_back(static_cast<int32_t>(piece.ids.size()));
    if (packed.lengths.size() < bin->size()) return;
    ++bin;
    take_(std::exchange(packed, {}));
  });
}

}  // namespace strata::data
