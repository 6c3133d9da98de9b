#include "strata/hf/int_values.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "strata/base/error.h"
#include "strata/base/float16.h"
#include "strata/hf/element.h"

namespace strata::hf {
namespace {

// Up to so many bits each code's value is worked out once for all columns of a group.
constexpr int64_t kBitsOfTable = 4;

std::vector<int32_t> one_after_the_other(const IntWeight& weight) {
  std::vector<int32_t> groups(static_cast<size_t>(weight.columns));
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i] = static_cast<int32_t>(static_cast<int64_t>(i) / weight.group);
  }
  return groups;
}

// Files whose columns keep their order hold one that nobody filled, too: all zeros, or with -1.
bool is_unfilled(const std::vector<int32_t>& groups) {
  return std::ranges::find(groups, -1) != groups.end() ||
         std::ranges::all_of(groups, [](int32_t group) { return group == 0; });
}

std::vector<int32_t> groups_of_columns(const ModelFolder& folder, const IntWeight& weight) {
  if (weight.order == nullptr) return one_after_the_other(weight);
  std::vector<int32_t> groups(static_cast<size_t>(weight.columns));
  std::memcpy(groups.data(), folder.bytes(*weight.order).data(), groups.size() * sizeof(int32_t));
  if (is_unfilled(groups)) return one_after_the_other(weight);
  const auto wrong = std::ranges::find_if(
      groups, [&](int32_t group) { return group < 0 || group >= weight.groups; });
  if (wrong == groups.end()) return groups;
  throw FormatError(
      "{}: tensor \"{}\": found group {}, expected 0 to {}; download the checkpoint again",
      folder.file_of(*weight.order).path().filename().string(), weight.order->name, *wrong,
      weight.groups - 1);
}

}  // namespace

struct IntValues::Row {
  std::vector<float> zeros, scales;
  std::vector<float> table;  // of each group, of each code
};

IntValues::IntValues(const ModelFolder& folder, const IntWeight& weight)
    : weight_(weight),
      words_shift_(std::countr_zero(static_cast<uint64_t>(weight.per_word()))),
      codes_(folder.bytes(*weight.codes).data()),
      scales_(folder.bytes(*weight.scales).data()),
      zeros_(weight.zeros == nullptr ? nullptr : folder.bytes(*weight.zeros).data()),
      groups_(groups_of_columns(folder, weight)) {}

// The PLACE-th code of a word.
uint32_t IntValues::field(const std::byte* words, int64_t word, int64_t place) const {
  uint32_t bits;
  std::memcpy(&bits, words + word * static_cast<int64_t>(sizeof(bits)), sizeof(bits));
  const auto mask = static_cast<uint32_t>((int64_t{1} << weight_.bits) - 1);
  return (bits >> (place * weight_.bits)) & mask;
}

// Where the codes of a row lie.
IntValues::Line IntValues::line_of(int64_t row) const {
  const int64_t shift = words_shift_, inside = weight_.per_word() - 1;
  switch (weight_.layout) {
    case IntLayout::kGptq:
      return {.first = row, .stride = weight_.rows, .shift = shift, .mask = inside, .place = 0};
    case IntLayout::kAwq:
      return {.first = row >> shift,
              .stride = weight_.rows >> shift,
              .shift = 0,
              .mask = 0,
              .place = IntWeight::kAwqPlaces[static_cast<size_t>(row & inside)]};
    case IntLayout::kCompressed:
      break;
  }
  const int64_t words = weight_.codes->shape[1];
  return {.first = row * words, .stride = 1, .shift = shift, .mask = inside, .place = 0};
}

int32_t IntValues::zero(int64_t row, int64_t group) const {
  const int64_t words = weight_.rows >> words_shift_, word = row >> words_shift_;
  const int64_t place = row & (weight_.per_word() - 1);
  const auto middle = static_cast<int32_t>(weight_.middle());
  if (weight_.layout == IntLayout::kAwq) {
    const int64_t of_row = IntWeight::kAwqPlaces[static_cast<size_t>(place)];
    return static_cast<int32_t>(field(zeros_, group * words + word, of_row));
  }
  if (weight_.layout == IntLayout::kGptq) {
    const auto stored = static_cast<int32_t>(field(zeros_, group * words + word, place));
    return (stored + (weight_.zeros_are_less ? 1 : 0)) & (2 * middle - 1);
  }
  if (zeros_ == nullptr) return middle;
  if (weight_.zeros->dtype == DType::kI32) {
    return static_cast<int32_t>(field(zeros_, word * weight_.groups + group, place));
  }
  return static_cast<int8_t>(zeros_[row * weight_.groups + group]) + middle;
}

float IntValues::scale(int64_t row, int64_t group) const {
  const bool by_rows = weight_.layout == IntLayout::kCompressed;
  const int64_t index = by_rows ? row * weight_.groups + group : group * weight_.rows + row;
  const DType type = weight_.scales->dtype;
  return element_at(scales_ + index * static_cast<int64_t>(size_of(type)), type);
}

float IntValues::rounded(float value) const {
  const DType type = weight_.scales->dtype;
  if (type == DType::kF32) return value;
  return type == DType::kF16 ? fp16_to_float(float_to_fp16(value))
                             : bf16_to_float(float_to_bf16(value));
}

void IntValues::describe(int64_t row, Row& values) const {
  const auto groups = static_cast<size_t>(weight_.groups);
  values.zeros.resize(groups);
  values.scales.resize(groups);
  for (size_t g = 0; g < groups; ++g) {
    values.zeros[g] = static_cast<float>(zero(row, static_cast<int64_t>(g)));
    values.scales[g] = scale(row, static_cast<int64_t>(g));
  }
  if (weight_.bits > kBitsOfTable) return;
  const size_t codes = size_t{1} << weight_.bits;
  values.table.resize(groups * codes);
  for (size_t i = 0; i < values.table.size(); ++i) {
    const size_t g = i / codes;
    values.table[i] = rounded((static_cast<float>(i % codes) - values.zeros[g]) * values.scales[g]);
  }
}

void IntValues::read_row(const Row& values, int64_t row, int64_t column,
                         std::span<float> out) const {
  const int64_t bits = weight_.bits;
  const bool has_table = bits <= kBitsOfTable;
  const Line line = line_of(row);
  for (size_t i = 0; i < out.size(); ++i, ++column) {
    const uint32_t found = field(codes_, line.first + (column >> line.shift) * line.stride,
                                 line.place + (column & line.mask));
    const auto g = static_cast<size_t>(groups_[static_cast<size_t>(column)]);
    out[i] = has_table ? values.table[(g << bits) + found]
                       : rounded((static_cast<float>(found) - values.zeros[g]) * values.scales[g]);
  }
}

void IntValues::read(int64_t begin, std::span<float> out) const {
  Row values;
  for (size_t done = 0; done < out.size();) {
    const int64_t place = begin + static_cast<int64_t>(done), column = place % weight_.columns;
    const size_t count = std::min(out.size() - done, static_cast<size_t>(weight_.columns - column));
    const int64_t row = place / weight_.columns;
    describe(row, values);
    read_row(values, row, column, out.subspan(done, count));
    done += count;
  }
}

}  // namespace strata::hf
