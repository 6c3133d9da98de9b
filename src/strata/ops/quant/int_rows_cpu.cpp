// The lanes of a vector are rows of the matrix, so that a column has one vector of zeros and one of
// scales whatever its group is: an order of columns costs nothing.
#include "strata/ops/quant/int_rows.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "strata/ops/lanes.h"
#include "strata/ops/line_buffer.h"
#include "strata/ops/quant/int_scales.h"
#include "strata/ops/quant/rounded_values.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::quant::cpu {
namespace {

// Columns at a time, whose values stay in the first cache; whole words of codes.
constexpr int64_t kColumns = 256;
constexpr int64_t kMostLanes = 16, kFewestCodesOfWord = 4, kMostCodesOfWord = 8;

// Part of some rows of the matrix, one a lane.
struct Values {
  const int32_t* words;         // of codes, [word][lane]
  const int32_t* groups;        // of each column, also of those that fill the last word
  const float *zeros, *scales;  // [group][lane]
  int64_t count;                // columns
  float* out;                   // [column][lane]
};

template <typename Floats, typename Ints, int kBits>
STRATA_INLINE void decode(const Values& v) {
  constexpr int64_t kLanes = sizeof(Floats) / sizeof(float), kCodes = 32 / kBits;
  for (int64_t column = 0; column < v.count; column += kCodes) {
    Ints word;
    std::memcpy(&word, v.words + column / kCodes * kLanes, sizeof word);
    for (int i = 0; i < kCodes; ++i) {
      const int64_t group = v.groups[column + i] * kLanes;
      Floats zero, scale;
      std::memcpy(&zero, v.zeros + group, sizeof zero);
      std::memcpy(&scale, v.scales + group, sizeof scale);
      const Ints code = (word >> (i * kBits)) & ((1 << kBits) - 1);
      const Floats value = (__builtin_convertvector(code, Floats) - zero) * scale;
      std::memcpy(v.out + (column + i) * kLanes, &value, sizeof value);
    }
  }
}

// Sums over a part of the inner dimension.
struct Dots {
  const float* x;  // rows at `stride` from each other
  int64_t stride, rows;
  const float* w;  // [column][lane]
  int64_t count;
  float* sums;  // [row][lane], added to
};

// So many rows of x at a time, each with so many vectors of sums, which do not wait for each other.
template <typename Floats, int kRows, int kParts>
STRATA_INLINE void add_dots(const Dots& d, int64_t first) {
  constexpr int64_t kLanes = sizeof(Floats) / sizeof(float);
  const float* x = d.x + first * d.stride;
  Floats sums[kRows][kParts] = {};
  int64_t column = 0;
  for (; column + kParts <= d.count; column += kParts) {
    for (int p = 0; p < kParts; ++p) {
      Floats w;
      std::memcpy(&w, d.w + (column + p) * kLanes, sizeof w);
      for (int m = 0; m < kRows; ++m) sums[m][p] += w * x[m * d.stride + column + p];
    }
  }
  for (; column < d.count; ++column) {
    Floats w;
    std::memcpy(&w, d.w + column * kLanes, sizeof w);
    for (int m = 0; m < kRows; ++m) sums[m][0] += w * x[m * d.stride + column];
  }
  for (int m = 0; m < kRows; ++m) {
    Floats total;
    std::memcpy(&total, d.sums + (first + m) * kLanes, sizeof total);
    for (int p = 0; p < kParts; ++p) total += sums[m][p];
    std::memcpy(d.sums + (first + m) * kLanes, &total, sizeof total);
  }
}

template <typename Floats>
STRATA_INLINE void add_all_dots(const Dots& d) {
  int64_t m = 0;
  for (; m + 8 <= d.rows; m += 8) add_dots<Floats, 8, 1>(d, m);
  for (; m + 4 <= d.rows; m += 4) add_dots<Floats, 4, 2>(d, m);
  for (; m < d.rows; ++m) add_dots<Floats, 1, 4>(d, m);
}

#if defined(__x86_64__) && defined(__GNUC__)
#define STRATA_ROWS_512 __attribute__((target("arch=x86-64-v4")))
#define STRATA_ROWS_256 __attribute__((target("arch=x86-64-v3")))
STRATA_ROWS_512 void decode_4_512(const Values& v) { decode<Lanes16, Ints16, 4>(v); }
STRATA_ROWS_512 void decode_8_512(const Values& v) { decode<Lanes16, Ints16, 8>(v); }
STRATA_ROWS_512 void add_dots_512(const Dots& d) { add_all_dots<Lanes16>(d); }
STRATA_ROWS_256 void decode_4_256(const Values& v) { decode<Lanes8, Ints8, 4>(v); }
STRATA_ROWS_256 void decode_8_256(const Values& v) { decode<Lanes8, Ints8, 8>(v); }
STRATA_ROWS_256 void add_dots_256(const Dots& d) { add_all_dots<Lanes8>(d); }
#endif
void decode_4_128(const Values& v) { decode<Lanes4, Ints4, 4>(v); }
void decode_8_128(const Values& v) { decode<Lanes4, Ints4, 8>(v); }
void add_dots_128(const Dots& d) { add_all_dots<Lanes4>(d); }

struct Instructions {
  int64_t lanes;
  void (*decode_4)(const Values&);
  void (*decode_8)(const Values&);
  void (*add_dots)(const Dots&);
};

Instructions best_instructions() {
#if defined(__x86_64__) && defined(__GNUC__)
  const InstructionSet best = best_instruction_set();
  if (best == InstructionSet::kAvx512) return {16, decode_4_512, decode_8_512, add_dots_512};
  if (best == InstructionSet::kAvx2) return {8, decode_4_256, decode_8_256, add_dots_256};
#endif
  return {4, decode_4_128, decode_8_128, add_dots_128};
}

// Of each column, and of as many beyond the last as fill a word.
std::vector<int32_t> groups_of_columns(const MatrixCodes& matrix) {
  const IntGroups& of = matrix.ints;
  std::vector<int32_t> groups(static_cast<size_t>(matrix.columns + kMostCodesOfWord));
  for (int64_t column = 0; column < matrix.columns; ++column) {
    groups[static_cast<size_t>(column)] =
        of.order != nullptr ? of.order[column] : static_cast<int32_t>(column / of.group);
  }
  return groups;
}

// Rows of the matrix, as many as a vector has lanes, by all of x.
class Block {
 public:
  Block(const MatrixCodes& matrix, const FewRows& product, const int32_t* groups,
        const Instructions& instructions)
      : matrix_(matrix),
        of_(matrix.ints),
        product_(product),
        groups_(groups),
        with_(instructions),
        zeros_(of_.groups * with_.lanes),
        scales_(of_.groups * with_.lanes),
        values_(kColumns * with_.lanes) {}

  void multiply(int64_t first) {
    widen_groups(first);
    alignas(64) float sums[kMostFewRows * kMostLanes] = {};
    for (int64_t column = 0; column < matrix_.columns; column += kColumns) {
      const int64_t count = std::min(kColumns, matrix_.columns - column);
      decode_columns(first, column, count);
      with_.add_dots(
          {product_.x + column, matrix_.columns, product_.rows, values_.get(), count, sums});
    }
    const int64_t lanes = std::min(with_.lanes, product_.weight_rows - first);
    for (int64_t m = 0; m < product_.rows; ++m) {
      std::copy_n(sums + m * with_.lanes, lanes, product_.y + m * product_.weight_rows + first);
    }
  }

 private:
  // Lanes beyond the last row repeat it.
  int64_t row_of(int64_t first, int64_t lane) const {
    return std::min(first + lane, product_.weight_rows - 1);
  }

  void widen_groups(int64_t first) {
    const float middle = of_.bits == 4 ? 8.0f : 128.0f;
    for (int64_t lane = 0; lane < with_.lanes; ++lane) {
      const int64_t begin = row_of(first, lane) * of_.groups;
      for (int64_t group = 0; group < of_.groups; ++group) {
        zeros_.get()[group * with_.lanes + lane] = middle + zero_at(of_, begin + group);
        scales_.get()[group * with_.lanes + lane] = scale_at(of_, begin + group);
      }
    }
  }

  // A row ends with its last code, which may be amid a word.
  void take_words(int64_t first, int64_t column, int64_t count, int32_t* words) const {
    constexpr int64_t kWord = sizeof(int32_t);
    const int64_t begin = column * of_.bits / 8, bytes = (count * of_.bits + 7) / 8;
    const auto rest = static_cast<size_t>(bytes % kWord);
    for (int64_t lane = 0; lane < with_.lanes; ++lane) {
      const uint8_t* from = matrix_.codes + row_of(first, lane) * of_.row_bytes + begin;
      int32_t* to = words + lane;
      for (int64_t i = 0; i < bytes / kWord; ++i) {
        std::memcpy(to + i * with_.lanes, from + i * kWord, kWord);
      }
      if (rest == 0) continue;
      int32_t last = 0;
      std::memcpy(&last, from + bytes / kWord * kWord, rest);
      to[bytes / kWord * with_.lanes] = last;
    }
  }

  void decode_columns(int64_t first, int64_t column, int64_t count) {
    alignas(64) int32_t words[kColumns / kFewestCodesOfWord * kMostLanes];
    take_words(first, column, count, words);
    (of_.bits == 4 ? with_.decode_4 : with_.decode_8)(
        {words, groups_ + column, zeros_.get(), scales_.get(), count, values_.get()});
    const int64_t n = count * with_.lanes;
    round_to(of_.scale_type, values_.get(), n);
    if (matrix_.through != of_.scale_type) round_to(matrix_.through, values_.get(), n);
    const bool is_rounded = matrix_.through == Element::kBFloat16;
    if (product_.rounds_to_bf16 && !is_rounded) round_to(Element::kBFloat16, values_.get(), n);
  }

  const MatrixCodes& matrix_;
  const IntGroups& of_;
  const FewRows& product_;
  const int32_t* groups_;
  const Instructions& with_;
  ops::cpu::LineBuffer zeros_, scales_, values_;
};

}  // namespace

void multiply_few_rows_of_ints(const MatrixCodes& matrix, const FewRows& product) {
  static const Instructions with = best_instructions();
  const std::vector<int32_t> groups = groups_of_columns(matrix);
  const int64_t blocks = (product.weight_rows + with.lanes - 1) / with.lanes;
  constexpr int64_t kElementsOfThread = 32768;
  const int64_t elements = std::max<int64_t>(1, matrix.columns * with.lanes);
  at::parallel_for(0, blocks, std::max<int64_t>(1, kElementsOfThread / elements),
                   [&](int64_t begin, int64_t end) {
                     Block block(matrix, product, groups.data(), with);
                     for (int64_t i = begin; i < end; ++i) block.multiply(i * with.lanes);
                   });
}

}  // namespace strata::ops::quant::cpu
