// Packing: several short rows become one row of up to max_length tokens, as TRL's pack_dataset does
// it. Never looks at what the tokens are.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "strata/data/batch.h"
#include "strata/data/store/waiting_rows.h"

namespace strata::data {

// Rows of one document each become packed ones. Consecutive batches of 1000 (the batch size of
// datasets.map) are packed on their own:
//   bfd        empty rows dropped, rows cut at max_length, sorted by length (longest first,
//   stable);
//              each goes into the row with the least sufficient space (the oldest among equals),
//              else into a new one. One document per input row.
//   bfd_split  as bfd, but a longer row is first split into pieces of max_length.
//   wrapped    the batch's tokens one after the other, cut every max_length. A row is one document.
// Source: "Fewer Truncations Improve Language Modeling" (arXiv 2404.10830) for bfd.
// Memory: some packed rows; what waits for a batch's end lies on disk where it is much.
class Packer {
 public:
  using Take = std::function<void(Example)>;

  // Requires: max_length >= 1. Errors: ConfigError for an unknown strategy.
  Packer(int64_t max_length, const std::string& strategy, Take take);

  void add(const ExampleView& row);
  // After the last row.
  void finish();

 private:
  void wrap(const ExampleView& row);
  void cut(const ExampleView& row);
  void end_batch();
  void pack_rest();

  const int64_t max_length_;
  const bool is_wrapped_, is_split_;
  const Take take_;
  int64_t num_rows_ = 0;          // of this batch
  Example current_;               // wrapped: not full yet
  WaitingRows rest_;              // bfd, bfd_split: pieces shorter than max_length
  std::vector<int64_t> lengths_;  // of these
};

}  // namespace strata::data
