// The codes of weights that a checkpoint holds in whole numbers, in one order whatever the layout
// of their file, for whoever keeps them so. Owns: that order. Never: values (int_values.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "strata/hf/int_values.h"
#include "strata/hf/int_weight.h"
#include "strata/hf/model_folder.h"

namespace strata::hf {

// Requires: the folder outlives it; codes of 4 or 8 bits. Threads: any number of readers.
class IntCodes {
 public:
  // Errors: as IntValues.
  IntCodes(const ModelFolder& folder, const IntWeight& weight);

  int64_t row_bytes() const { return row_bytes_; }

  // Rows from `first` on, row_bytes() each: of two codes of 4 bits in a byte the first one is in
  // its low half.
  void read_rows(int64_t first, std::span<uint8_t> out) const;

  // The bytes of the scales [rows, groups], in weight.dtype().
  std::vector<std::byte> scales() const;
  // [rows, groups], less the middle of all codes; empty where that always means zero.
  std::vector<int8_t> zeros() const;
  // Of each column its group; empty where one group comes after the other.
  std::vector<int32_t> order() const;

 private:
  void transpose_words(int64_t first, std::span<uint8_t> out) const;
  void spread_words_of_awq(int64_t first, std::span<uint8_t> out) const;

  const ModelFolder& folder_;
  IntWeight weight_;
  IntValues values_;
  int64_t row_bytes_;
  const std::byte* codes_;
};

}  // namespace strata::hf
