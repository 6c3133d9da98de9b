#include "strata/hf/int_codes.h"

#include <algorithm>
#include <cstring>

#include "strata/base/error.h"

namespace strata::hf {
namespace {

constexpr int64_t kWord = 4;  // bytes

}  // namespace

IntCodes::IntCodes(const ModelFolder& folder, const IntWeight& weight)
    : folder_(folder),
      weight_(weight),
      values_(folder, weight),
      row_bytes_((weight.columns * weight.bits + 7) / 8),
      codes_(folder.bytes(*weight.codes).data()) {
  if (weight.bits == 4 || weight.bits == 8) return;
  throw InternalError("\"{}\": found {} bits, expected 4 or 8; report this as a bug",
                      weight.codes->name, weight.bits);
}

void IntCodes::read_rows(int64_t first, std::span<uint8_t> out) const {
  switch (weight_.layout) {
    case IntLayout::kGptq:
      return transpose_words(first, out);
    case IntLayout::kAwq:
      return spread_words_of_awq(first, out);
    case IntLayout::kCompressed:
      break;
  }
  // A row of words may end in unused codes.
  const int64_t in_file = weight_.codes->shape[1] * kWord;
  const auto bytes = static_cast<size_t>(row_bytes_);
  const std::byte* from = codes_ + first * in_file;
  for (size_t done = 0; done < out.size(); done += bytes, from += in_file) {
    std::memcpy(out.data() + done, from, bytes);
  }
}

// GPTQ: a word is part of a row as it is, but those of one row lie apart.
void IntCodes::transpose_words(int64_t first, std::span<uint8_t> out) const {
  const int64_t count = static_cast<int64_t>(out.size()) / row_bytes_;
  for (int64_t word = 0; word < row_bytes_ / kWord; ++word) {
    const std::byte* from = codes_ + (word * weight_.rows + first) * kWord;
    for (int64_t row = 0; row < count; ++row) {
      std::memcpy(out.data() + row * row_bytes_ + word * kWord, from + row * kWord, kWord);
    }
  }
}

// AWQ: a word holds the codes of eight rows of a column.
void IntCodes::spread_words_of_awq(int64_t first, std::span<uint8_t> out) const {
  constexpr int64_t kRows = 8;
  const int64_t last = first + static_cast<int64_t>(out.size()) / row_bytes_;
  const int64_t words = weight_.rows / kRows;
  std::ranges::fill(out, uint8_t{0});
  for (int64_t column = 0; column < weight_.columns; ++column) {
    for (int64_t word = first / kRows; word * kRows < last; ++word) {
      uint32_t codes;
      std::memcpy(&codes, codes_ + (column * words + word) * kWord, sizeof(codes));
      const int64_t end = std::min(last, (word + 1) * kRows);
      for (int64_t row = std::max(first, word * kRows); row < end; ++row) {
        const int64_t place = IntWeight::kAwqPlaces[static_cast<size_t>(row % kRows)];
        const uint32_t code = (codes >> (4 * place)) & 15u;
        out[static_cast<size_t>((row - first) * row_bytes_ + column / 2)] |=
            static_cast<uint8_t>(code << (4 * (column % 2)));
      }
    }
  }
}

std::vector<std::byte> IntCodes::scales() const {
  const std::span<const std::byte> bytes = folder_.bytes(*weight_.scales);
  std::vector<std::byte> scales(bytes.begin(), bytes.end());
  if (weight_.layout == IntLayout::kCompressed) return scales;
  const auto size = static_cast<int64_t>(size_of(weight_.scales->dtype));
  for (int64_t row = 0; row < weight_.rows; ++row) {
    for (int64_t group = 0; group < weight_.groups; ++group) {
      std::memcpy(scales.data() + (row * weight_.groups + group) * size,
                  bytes.data() + (group * weight_.rows + row) * size, static_cast<size_t>(size));
    }
  }
  return scales;
}

std::vector<int8_t> IntCodes::zeros() const {
  std::vector<int8_t> zeros;
  if (weight_.zeros == nullptr) return zeros;
  zeros.reserve(static_cast<size_t>(weight_.rows * weight_.groups));
  const auto middle = static_cast<int32_t>(weight_.middle());
  for (int64_t row = 0; row < weight_.rows; ++row) {
    for (int64_t group = 0; group < weight_.groups; ++group) {
      zeros.push_back(static_cast<int8_t>(values_.zero(row, group) - middle));
    }
  }
  return zeros;
}

std::vector<int32_t> IntCodes::order() const {
  const std::vector<int32_t>& groups = values_.groups();
  for (size_t column = 0; column < groups.size(); ++column) {
    if (groups[column] != static_cast<int64_t>(column) / weight_.group) return groups;
  }
  return {};
}

}  // namespace strata::hf
