// Packing: several short rows become one row of up to max_length tokens, as TRL's pack_dataset does
// it. Never looks at what the tokens are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/data/batch.h"

namespace strata::data {

// Rows the reference packs together: the batch size of datasets.map.
inline constexpr int64_t kPackBatchRows = 1000;

// `rows`: one document each. Consecutive batches of kPackBatchRows are packed on their own:
//   bfd        empty rows dropped, rows cut at max_length, sorted by length (longest first,
//   stable);
//              each goes into the row with the least sufficient space (the oldest among equals),
//              else into a new one. One document per input row.
//   bfd_split  as bfd, but a longer row is first split into pieces of max_length.
//   wrapped    the batch's tokens one after the other, cut every max_length. A row is one document.
// Source: "Fewer Truncations Improve Language Modeling" (arXiv 2404.10830) for bfd.
// Requires: max_length >= 1. Errors: ConfigError for an unknown strategy.
std::vector<Example> pack(std::vector<Example> rows, int64_t max_length,
                          const std::string& strategy);

}  // namespace strata::data
