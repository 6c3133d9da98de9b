#include "strata/data/long_rows.h"

#include <algorithm>

#include "strata/base/labels.h"

namespace strata::data {
namespace {

bool fit_answers(const PrepareOptions& options, Example& pair) {
  const bool is_long =
      options.max_length > 0 && std::ranges::max(pair.lengths) > options.max_length;
  if (is_long && !options.preference->are_rewarded) {
    truncate_answers(pair, options.max_length, options.preference->truncation_mode);
  }
  return is_long;
}

bool is_untrained(const Example& row) {
  return std::ranges::all_of(row.labels, [](int32_t label) { return label == kNotTrained; });
}

}  // namespace

bool fit_length(const PrepareOptions& options, Example& row) {
  if (options.pairs || options.rated) return false;  // of rated ones rated_rows.h
  if (options.preference) return fit_answers(options, row);
  const auto size = static_cast<int64_t>(row.ids.size());
  const bool keeps_all =
      options.packing && options.packing_strategy != "bfd" && options.long_rows != "drop";
  if (options.max_length == 0 || size <= options.max_length || keeps_all) return false;
  if (options.long_rows == "split") return true;
  for (auto* column : {&row.ids, &row.labels}) {
    column->resize(static_cast<size_t>(options.max_length));
    column->shrink_to_fit();
  }
  row.lengths.assign(1, static_cast<int32_t>(options.max_length));
  return true;
}

std::vector<Example> split_row(const Example& row, int64_t max_length) {
  std::vector<Example> parts;
  const auto limit = static_cast<size_t>(max_length);
  for (size_t begin = 0; begin < row.ids.size(); begin += limit) {
    const size_t end = std::min(begin + limit, row.ids.size());
    const auto part = [begin, end](const std::vector<int32_t>& all) {
      return std::vector<int32_t>(all.begin() + static_cast<ptrdiff_t>(begin),
                                  all.begin() + static_cast<ptrdiff_t>(end));
    };
    parts.push_back({.ids = part(row.ids),
                     .labels = part(row.labels),
                     .lengths = {static_cast<int32_t>(end - begin)}});
  }
  return parts;
}

bool is_cut_away(const PrepareOptions& options, const Example& row) {
  if (options.packing || options.rated || options.labelled || options.max_length == 0) return false;
  if (options.preference && options.preference->are_rewarded) return false;
  if (!options.preference) return is_untrained(row);
  return find_untrained_answer(row, options.preference->learns_prompt) < row.lengths.size();
}

}  // namespace strata::data
