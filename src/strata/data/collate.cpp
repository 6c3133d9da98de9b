#include "strata/data/collate.h"

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
}

void append_row(const ExampleView& row, int64_t row_index, MicroBatch& batch) {
  size_t at = 0;
  for (const int32_t length : row.lengths) {
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
  for (size_t i = source; i < row.ids.size(); ++i) {
    batch.ids.push_back(i == source ? decoder_start : row.ids[i - 1]);
    batch.targets.push_back(row.labels[i]);
    batch.positions.push_back(static_cast<int64_t>(i - source));
    batch.token_keys.push_back(first_key + static_cast<int64_t>(i));
    batch.num_targets += row.labels[i] != kNotTrained;
  }
  batch.offsets.push_back(static_cast<int64_t>(batch.ids.size()));
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
  for (size_t i = 0; i < rows.size(); ++i) {
    if (decoder_start) {
      append_pair(rows[i], row_indices[i], *decoder_start, batch);
    } else {
      append_row(rows[i], row_indices[i], batch);
    }
    batch.row_tokens.push_back(static_cast<int64_t>(rows[i].ids.size()));
  }
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
