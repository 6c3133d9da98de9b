// Values of weights that a checkpoint holds in whole numbers: code less zero, times scale. Never:
// which tensors there are (int_weight.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strata/hf/int_weight.h"
#include "strata/hf/model_folder.h"

namespace strata::hf {

// Requires: the folder outlives it. Threads: any number of readers.
class IntValues {
 public:
  // FormatError for columns of groups that are not there.
  IntValues(const ModelFolder& folder, const IntWeight& weight);

  // Elements [begin, begin + out.size()) of the flattened matrix, each rounded once, to the type of
  // the scales.
  void read(int64_t begin, std::span<float> out) const;

  // The code that means zero in a group of a row; old files may name one that is no code.
  int32_t zero(int64_t row, int64_t group) const;
  // Of each column its group.
  const std::vector<int32_t>& groups() const { return groups_; }

 private:
  // Zeros and scales of a row, and, of few bits, what each code of a group comes to.
  struct Row;
  // The word of a row's column C is FIRST + (C >> SHIFT) * STRIDE, its place there
  // PLACE + (C & MASK).
  struct Line {
    int64_t first, stride, shift, mask, place;
  };

  void describe(int64_t row, Row& values) const;
  void read_row(const Row& values, int64_t row, int64_t column, std::span<float> out) const;
  Line line_of(int64_t row) const;
  float scale(int64_t row, int64_t group) const;
  uint32_t field(const std::byte* words, int64_t word, int64_t place) const;
  float rounded(float value) const;

  IntWeight weight_;
  int64_t words_shift_;  // a word's codes are a power of two
  const std::byte* codes_;
  const std::byte* scales_;
  const std::byte* zeros_;
  std::vector<int32_t> groups_;  // of each column
};

}  // namespace strata::hf
