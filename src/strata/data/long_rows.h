// Rows of more than max_length tokens: cut, split into rows of their own, or left as they are where
// packing splits them. Never drops a row, never packs.
#pragma once

#include <cstdint>
#include <vector>

#include "strata/data/batch.h"
#include "strata/data/prepare_options.h"

namespace strata::data {

// Whether the row is longer than it may be. Cuts such a row where that is the rule, so that memory
// holds no more than is used; of preferences each document.
bool fit_length(const PrepareOptions& options, Example& row);

// Parts of max_length tokens and what is left. Requires: max_length > 0; a row of one document.
std::vector<Example> split_row(const Example& row, int64_t max_length);

// Whether truncation left nothing to train on.
bool is_cut_away(const PrepareOptions& options, const Example& row);

}  // namespace strata::data
