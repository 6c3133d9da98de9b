// Rows to the micro-batch of one rank. Where the reference pads rows or flattens packed ones, this
// lays documents side by side; losses and counts of trained tokens are the same. Never touches
// torch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "strata/data/batch.h"
#include "strata/data/store/token_store.h"

namespace strata::data {

// The longest row whose token_keys stay unique.
inline constexpr int64_t kMaxRowTokens = int64_t{1} << 24;

// `row_indices[i]` is the index of rows[i] in the data set; the same row may come twice.
// A document's first label is never a target; its last token has none.
// `decoder_start`: for an encoder-decoder model, which reads the first document of each row as the
// source and learns to write the second: the target is the label of the same place, and the ids are
// the labels shifted by one after this id (kStartsWithLastToken: after the last of them).
// Requires: rows and row_indices of one length; each row at most kMaxRowTokens long.
// Errors: InternalError if labels or lengths do not fit the ids.
MicroBatch collate(std::span<const ExampleView> rows, std::span<const int64_t> row_indices,
                   std::optional<int64_t> decoder_start = {});

// Rows of a set by their indices.
MicroBatch collate_rows(const TokenStore& set, std::span<const int64_t> row_indices,
                        std::optional<int64_t> decoder_start = {});

// Trained next-token predictions of one row: what it adds to MicroBatch::num_targets and, in the
// reference, to num_items_in_batch.
int64_t count_targets(const ExampleView& row);

}  // namespace strata::data
