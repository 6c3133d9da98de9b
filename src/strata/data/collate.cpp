#include "strata/data/collate.h"

#include <algorithm>
#include <numeric>

#include "strata/base/error.h"
#include "strata/base/labels.h"

namespace strata::data {
namespace {

void check_row(const ExampleView& row, int64_t index) {
  const int64_t covered = std::accumulate(row.lengths.begin(), row.lengths.end(), int64_t{0});
  const auto size = static_cast<int64_t>(row.ids.size());
  if (row.labels.size() != row.ids.size() || covered != size || size > kMaxRowTokens) {
    throw InternalError(
        "row {}: found {} ids, {} labels and documents of {} tokens, expected three "
        "equal numbers up to {}",
        index, size, row.labels.size(), covered, kMaxRowTokens);
  }
  if (row.second_text < 0 || row.second_text > size) {
    throw InternalError("row {}: found a second text at token {}, expected it among {}", index,
                        row.second_text, size);
  }
}

// Which documents of a row.
struct Documents {
  size_t first, count;
};

void append_row(const ExampleView& row, int64_t row_index, const Documents& documents,
                MicroBatch& batch) {
  const auto skipped = row.lengths.first(documents.first);
  auto at = static_cast<size_t>(std::accumulate(skipped.begin(), skipped.end(), int64_t{0}));
  for (const int32_t length : row.lengths.subspan(documents.first, documents.count)) {
    if (length == 0) continue;
    batch.first_labels.push_back(row.labels[at]);
    for (int32_t i = 0; i < length; ++i, ++at) {
      const int32_t target = i + 1 < length ? row.labels[at + 1] : kNotTrained;
      batch.ids.push_back(row.ids[at]);
      batch.targets.push_back(target);
      batch.positions.push_back(i);
      batch.token_keys.push_back(row_index * kMaxRowTokens + static_cast<int64_t>(at));
      batch.num_targets += target != kNotTrained;
    }
    batch.offsets.push_back(static_cast<int64_t>(batch.ids.size()));
  }
}

// Where any row has a second text, all tokens have a type.
void append_types(std::span<const ExampleView> rows, MicroBatch& batch) {
  const auto has_second = [](const ExampleView& row) { return row.second_text > 0; };
  if (std::ranges::none_of(rows, has_second)) return;
  for (const ExampleView& row : rows) {
    const auto size = static_cast<int64_t>(row.ids.size());
    const int64_t first = has_second(row) ? row.second_text : size;
    batch.token_types.insert(batch.token_types.end(), static_cast<size_t>(first), 0);
    batch.token_types.insert(batch.token_types.end(), static_cast<size_t>(size - first), 1);
  }
}

// Targets of labelled rows.
void append_targets(std::span<const ExampleView> rows, MicroBatch& batch) {
  const auto has_targets = [](const ExampleView& row) { return !row.row_targets.empty(); };
  if (std::ranges::none_of(rows, has_targets)) return;
  for (const ExampleView& row : rows) {
    batch.row_targets.emplace_back(row.row_targets.begin(), row.row_targets.end());
  }
}

void append_pair(const ExampleView& row, int64_t row_index, int64_t decoder_start,
                 MicroBatch& batch) {
  if (row.lengths.size() != 2) {
    throw InternalError("row {}: found {} documents, expected source and target", row_index,
                        row.lengths.size());
  }
  const auto source = static_cast<size_t>(row.lengths[0]);
  const int64_t first_key = row_index * kMaxRowTokens;
  for (size_t i = 0; i < source; ++i) {
    batch.source_ids.push_back(row.ids[i]);
    batch.source_positions.push_back(static_cast<int64_t>(i));
    batch.source_token_keys.push_back(first_key + static_cast<int64_t>(i));
  }
  batch.source_offsets.push_back(static_cast<int64_t>(batch.source_ids.size()));
  const int64_t start = decoder_start == kStartsWithLastToken ? row.ids.back() : decoder_start;
  for (size_t i = source; i < row.ids.size(); ++i) {
    batch.ids.push_back(i == source ? start : row.ids[i - 1]);
    batch.targets.push_back(row.labels[i]);
    batch.positions.push_back(static_cast<int64_t>(i - source));
    batch.token_keys.push_back(first_key + static_cast<int64_t>(i));
    batch.num_targets += row.labels[i] != kNotTrained;
  }
  batch.offsets.push_back(static_cast<int64_t>(batch.ids.size()));
}

// The document after the first of every rated row.
std::shared_ptr<const MicroBatch> collate_mismatched(std::span<const ExampleView> rows,
                                                     std::span<const int64_t> row_indices) {
  MicroBatch batch;
  batch.offsets.push_back(0);
  batch.rows.assign(row_indices.begin(), row_indices.end());
  for (size_t i = 0; i < rows.size(); ++i) {
    append_row(rows[i], row_indices[i], {.first = 1, .count = 1}, batch);
    batch.row_tokens.push_back(rows[i].lengths[1]);
  }
  return std::make_shared<const MicroBatch>(std::move(batch));
}

// Documents of rated rows: their own, and one beside it in all of them or in none.
size_t documents_of_rated(std::span<const ExampleView> rows) {
  const size_t count = rows[0].lengths.size();
  const bool is_sound = count == 1 || count == 2;
  for (const ExampleView& row : rows) {
    if (is_sound && row.rating != Rating::kNone && row.lengths.size() == count) continue;
    throw InternalError("collate: found {} documents in a row of a rated set, expected {}",
                        row.lengths.size(), is_sound ? count : 1);
  }
  return count;
}

}  // namespace

MicroBatch collate(std::span<const ExampleView> rows, std::span<const int64_t> row_indices,
                   std::optional<int64_t> decoder_start) {
  if (rows.size() != row_indices.size()) {
    throw InternalError("collate: found {} rows and {} indices, expected as many", rows.size(),
                        row_indices.size());
  }
  size_t tokens = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    check_row(rows[i], row_indices[i]);
    tokens += rows[i].ids.size();
  }
  MicroBatch batch;
  for (auto* column : {&batch.ids, &batch.targets, &batch.positions, &batch.token_keys}) {
    column->reserve(tokens);
  }
  batch.offsets.push_back(0);
  if (decoder_start) batch.source_offsets.push_back(0);
  batch.rows.assign(row_indices.begin(), row_indices.end());
  const bool are_rated = !rows.empty() && rows[0].rating != Rating::kNone;
  const size_t rated_documents = are_rated ? documents_of_rated(rows) : 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (decoder_start) {
      append_pair(rows[i], row_indices[i], *decoder_start, batch);
    } else {
      const size_t count = are_rated ? 1 : rows[i].lengths.size();
      append_row(rows[i], row_indices[i], {.first = 0, .count = count}, batch);
    }
    batch.row_tokens.push_back(are_rated ? rows[i].lengths[0]
                                         : static_cast<int64_t>(rows[i].ids.size()));
    if (are_rated) batch.ratings.push_back(rows[i].rating);
  }
  append_types(rows, batch);
  append_targets(rows, batch);
  if (rated_documents == 2) batch.mismatched = collate_mismatched(rows, row_indices);
  return batch;
}

MicroBatch collate_rows(const TokenStore& set, std::span<const int64_t> row_indices,
                        std::optional<int64_t> decoder_start) {
  std::vector<ExampleView> rows;
  rows.reserve(row_indices.size());
  for (const int64_t row : row_indices) rows.push_back(set[static_cast<size_t>(row)]);
  return collate(rows, row_indices, decoder_start);
}

int64_t count_targets(const ExampleView& row) {
  int64_t count = 0;
  size_t begin = 0;
  for (const int32_t length : row.lengths) {
    for (int32_t i = 1; i < length; ++i) count += row.labels[begin + i] != kNotTrained;
    begin += static_cast<size_t>(length);
  }
  return count;
}

}  // namespace strata::data
