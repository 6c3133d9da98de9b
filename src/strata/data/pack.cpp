#include "strata/data/pack.h"

#include <algorithm>
#include <deque>
#include <map>
#include <span>

#include "strata/base/error.h"

namespace strata::data {
namespace {

// A piece of an input row, to be one document.
struct Piece {
  const Example* row;
  int64_t begin;
  int64_t length;
};

void append(const Piece& piece, Example& to) {
  const auto copy = [&piece](const std::vector<int32_t>& from, std::vector<int32_t>& into) {
    const auto begin = from.begin() + piece.begin;
    into.insert(into.end(), begin, begin + piece.length);
  };
  copy(piece.row->ids, to.ids);
  copy(piece.row->labels, to.labels);
  to.lengths.push_back(static_cast<int32_t>(piece.length));
}

std::vector<Piece> cut_rows(std::span<const Example> rows, int64_t max_length, bool keep_overflow) {
  std::vector<Piece> pieces;
  for (const Example& row : rows) {
    const auto size = static_cast<int64_t>(row.ids.size());
    for (int64_t begin = 0; begin < size; begin += max_length) {
      pieces.push_back({&row, begin, std::min(max_length, size - begin)});
      if (!keep_overflow) break;
    }
  }
  return pieces;
}

void pack_best_fit(std::span<const Example> rows, int64_t max_length, bool keep_overflow,
                   std::vector<Example>& packed) {
  std::vector<Piece> pieces = cut_rows(rows, max_length, keep_overflow);
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.length > b.length; });
  std::vector<std::vector<Piece>> bins;
  std::map<int64_t, std::deque<size_t>> open;  // free tokens -> bins, oldest first
  for (const Piece& piece : pieces) {
    auto fit = open.lower_bound(piece.length);
    int64_t space = max_length;
    size_t bin = bins.size();
    if (fit == open.end()) {
      bins.emplace_back();
    } else {
      space = fit->first;
      bin = fit->second.front();
      fit->second.pop_front();
      if (fit->second.empty()) open.erase(fit);
    }
    bins[bin].push_back(piece);
    if (space > piece.length) open[space - piece.length].push_back(bin);
  }
  for (const std::vector<Piece>& bin : bins) {
    Example& row = packed.emplace_back();
    size_t tokens = 0;
    for (const Piece& piece : bin) tokens += static_cast<size_t>(piece.length);
    row.ids.reserve(tokens);
    row.labels.reserve(tokens);
    row.lengths.reserve(bin.size());
    for (const Piece& piece : bin) append(piece, row);
  }
}

void pack_wrapped(std::span<const Example> rows, int64_t max_length, std::vector<Example>& packed) {
  size_t left = 0;
  for (const Example& row : rows) left += row.ids.size();
  Example current;
  const auto close = [&] {
    current.lengths.assign(1, static_cast<int32_t>(current.ids.size()));
    packed.push_back(std::move(current));
    current = {};
  };
  for (const Example& row : rows) {
    for (size_t at = 0; at < row.ids.size();) {
      if (current.ids.empty()) {
        current.ids.reserve(std::min(left, static_cast<size_t>(max_length)));
        current.labels.reserve(current.ids.capacity());
      }
      const size_t take =
          std::min(static_cast<size_t>(max_length) - current.ids.size(), row.ids.size() - at);
      append({&row, static_cast<int64_t>(at), static_cast<int64_t>(take)}, current);
      at += take;
      left -= take;
      if (current.ids.size() == static_cast<size_t>(max_length)) close();
    }
  }
  if (!current.ids.empty()) close();
}

}  // namespace

std::vector<Example> pack(std::vector<Example> rows, int64_t max_length,
                          const std::string& strategy) {
  if (max_length < 1) {
    throw InternalError("packing: found max_length {}, expected at least 1", max_length);
  }
  const bool wrapped = strategy == "wrapped";
  const bool split = strategy == "bfd_split";
  if (!wrapped && !split && strategy != "bfd") {
    throw ConfigError(
        "packing_strategy: found \"{}\", expected \"bfd\", \"bfd_split\" or \"wrapped\"", strategy);
  }
  std::vector<Example> packed;
  for (size_t begin = 0; begin < rows.size(); begin += kPackBatchRows) {
    const size_t count = std::min<size_t>(kPackBatchRows, rows.size() - begin);
    const std::span<Example> batch(rows.data() + begin, count);
    if (wrapped) {
      pack_wrapped(batch, max_length, packed);
    } else {
      pack_best_fit(batch, max_length, split, packed);
    }
    // The tokens now live in `packed`; without this the set would be held twice.
    std::fill(batch.begin(), batch.end(), Example{});
  }
  return packed;
}

}  // namespace strata::data
