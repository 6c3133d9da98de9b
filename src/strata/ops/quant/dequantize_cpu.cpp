// Reads a range of a quantised matrix as fp32 on the CPU. Never: checks, threads.
#include <algorithm>
#include <cstring>
#include <vector>

#include "strata/ops/quant/decode_pairs.h"
#include "strata/ops/quant/int_scales.h"
#include "strata/ops/quant/kernels.h"
#include "strata/ops/quant/rounded_values.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::quant::cpu {

namespace {

STRATA_VECTORIZED void dequantize_bytes(const int8_t* codes, int64_t n, float scale, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(codes[i]) * scale;
}

// Elements of one block. An odd first or last element uses half a byte.
void dequantize_block(const CodeValues& values, const uint8_t* codes, int64_t begin, int64_t count,
                      float* x) {
  const int64_t end = begin + count;
  float both[2];
  if (begin % 2 != 0 && begin < end) {
    decode_pairs(values, codes + begin++ / 2, 1, both);
    *x++ = both[1];
  }
  const int64_t pairs = (end - begin) / 2;
  decode_pairs(values, codes + begin / 2, pairs, x);
  if ((end - begin) % 2 != 0) {
    decode_pairs(values, codes + begin / 2 + pairs, 1, both);
    x[2 * pairs] = both[0];
  }
}

// The bits of a code's value, without a table: the compiler makes vectors of this.
STRATA_INLINE uint32_t decode_e4m3(uint32_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const uint32_t normal = (magnitude << 20) + (120u << 23);
  const uint32_t small = float_bits(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f);
  const uint32_t finite = magnitude < 8u ? small : normal;
  return (magnitude == 0x7fu ? 0x7fc00000u : finite) | (code & 0x80u) << 24;
}

STRATA_VECTORIZED void dequantize_fp8(const uint8_t* codes, int64_t n, float scale, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] = bits_float(decode_e4m3(codes[i])) * scale;
}

// Elements of one row from a column on.
void dequantize_fp8_row(const MatrixCodes& matrix, int64_t row, int64_t column, int64_t count,
                        float* x) {
  const int64_t width = matrix.block, across = (matrix.columns + width - 1) / width;
  const float* scales = matrix.scales + row / matrix.tile_rows * across;
  const uint8_t* codes = matrix.codes + row * matrix.columns;
  for (int64_t done = 0; done < count;) {
    const int64_t at = column + done, tile = at / width;
    const int64_t length = std::min(count - done, (tile + 1) * width - at);
    dequantize_fp8(codes + at, length, scales[tile], x + done);
    done += length;
  }
  round_to(matrix.through, x, count);
}

STRATA_INLINE float above_middle(int32_t code, int32_t middle) {
  return static_cast<float>(code - middle);
}

STRATA_VECTORIZED void widen_pairs(const uint8_t* codes, int64_t pairs, float* x) {
  for (int64_t i = 0; i < pairs; ++i) {
    x[2 * i] = above_middle(codes[i] & 15, 8);
    x[2 * i + 1] = above_middle(codes[i] >> 4, 8);
  }
}

STRATA_VECTORIZED void widen_bytes(const uint8_t* codes, int64_t n, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] = above_middle(codes[i], 128);
}

// Codes of one row from a column on, less their middle. An odd first or last one uses half a byte.
void widen_codes(int bits, const uint8_t* codes, int64_t column, int64_t count, float* x) {
  if (bits == 8) return widen_bytes(codes + column, count, x);
  if (column % 2 != 0 && count > 0) {
    *x++ = above_middle(codes[column++ / 2] >> 4, 8);
    --count;
  }
  widen_pairs(codes + column / 2, count / 2, x);
  if (count % 2 != 0) x[count - 1] = above_middle(codes[(column + count) / 2] & 15, 8);
}

STRATA_VECTORIZED void scale_group(float* x, int64_t n, float zero, float scale) {
  for (int64_t i = 0; i < n; ++i) x[i] = (x[i] - zero) * scale;
}

// Columns whose groups are mixed. Where there are more of them than groups, the row's scales are
// widened once.
void scale_by_order(const IntGroups& of, int64_t row, int64_t column, int64_t count, float* x) {
  const int64_t first = row * of.groups;
  if (count < of.groups) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t index = first + of.order[column + i];
      x[i] = (x[i] - zero_at(of, index)) * scale_at(of, index);
    }
    return;
  }
  thread_local std::vector<float> scales;
  scales.resize(static_cast<size_t>(of.groups));
  for (int64_t g = 0; g < of.groups; ++g) scales[static_cast<size_t>(g)] = scale_at(of, first + g);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t group = of.order[column + i];
    x[i] = (x[i] - zero_at(of, first + group)) * scales[static_cast<size_t>(group)];
  }
}

void scale_by_groups(const IntGroups& of, int64_t row, int64_t column, int64_t count, float* x) {
  for (int64_t done = 0; done < count;) {
    const int64_t at = column + done, group = at / of.group, index = row * of.groups + group;
    const int64_t length = std::min(count - done, (group + 1) * of.group - at);
    scale_group(x + done, length, zero_at(of, index), scale_at(of, index));
    done += length;
  }
}

constexpr int64_t kCodes = 16;  // of 4 bits
constexpr int64_t kGroupsAtOnce = 16;

STRATA_VECTORIZED void values_of_codes(const float* zeros, const float* scales, int64_t groups,
                                       float* x) {
  for (int64_t g = 0; g < groups; ++g) {
    for (int32_t code = 0; code < kCodes; ++code) {
      x[g * kCodes + code] = (above_middle(code, 8) - zeros[g]) * scales[g];
    }
  }
}

// What the codes of groups of a row stand for, sixteen values each, that of the lowest code first.
void values_of_groups(const MatrixCodes& matrix, int64_t row, int64_t first, int64_t groups,
                      float* x) {
  const IntGroups& of = matrix.ints;
  float zeros[kGroupsAtOnce], scales[kGroupsAtOnce];
  for (int64_t done = 0; done < groups; done += kGroupsAtOnce) {
    const int64_t count = std::min(kGroupsAtOnce, groups - done);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t index = row * of.groups + first + done + i;
      zeros[i] = zero_at(of, index);
      scales[i] = scale_at(of, index);
    }
    values_of_codes(zeros, scales, count, x + done * kCodes);
  }
  round_to(of.scale_type, x, groups * kCodes);
  if (matrix.through != of.scale_type) round_to(matrix.through, x, groups * kCodes);
}

// Elements of a row of 4 bits from an even column on, a group at a time: a group has sixteen
// values, which are rounded instead of all its elements.
void look_up_groups(const MatrixCodes& matrix, int64_t row, int64_t column, int64_t count,
                    float* x) {
  const IntGroups& of = matrix.ints;
  const uint8_t* codes = matrix.codes + row * of.row_bytes;
  alignas(64) float values[kGroupsAtOnce * kCodes];
  const int64_t end = (column + count - 1) / of.group + 1;
  float last[2];
  int64_t first = 0, known = 0;  // groups whose values are there
  for (int64_t done = 0; done < count;) {
    const int64_t at = column + done, group = at / of.group;
    const int64_t length = std::min(count - done, (group + 1) * of.group - at);
    if (group >= first + known) {
      first = group;
      known = std::min(kGroupsAtOnce, end - group);
      values_of_groups(matrix, row, first, known, values);
    }
    const CodeValues look_up{values + (group - first) * kCodes, 1.0f, Element::kFloat,
                             /*low_half_first=*/true};
    decode_pairs(look_up, codes + at / 2, length / 2, x + done);
    if (length % 2 != 0) {  // only where the row ends
      decode_pairs(look_up, codes + (at + length) / 2, 1, last);
      x[done + length - 1] = last[0];
    }
    done += length;
  }
}

STRATA_VECTORIZED void split_pairs(const uint8_t* codes, int64_t pairs, uint8_t* to) {
  for (int64_t i = 0; i < pairs; ++i) {
    to[2 * i] = codes[i] & 15;
    to[2 * i + 1] = codes[i] >> 4;
  }
}

STRATA_VECTORIZED void look_up(const float* values, const int32_t* groups, const uint8_t* codes,
                               int64_t n, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] = values[groups[i] * int32_t{kCodes} + codes[i]];
}

// The same where columns' groups are mixed. Requires: few groups beside `count`.
void look_up_by_order(const MatrixCodes& matrix, int64_t row, int64_t column, int64_t count,
                      float* x) {
  const IntGroups& of = matrix.ints;
  thread_local std::vector<float> values;
  values.resize(static_cast<size_t>(of.groups * kCodes));
  values_of_groups(matrix, row, /*first=*/0, of.groups, values.data());
  const uint8_t* codes = matrix.codes + row * of.row_bytes + column / 2;
  constexpr int64_t kAtOnce = 512;
  uint8_t split[kAtOnce];
  for (int64_t done = 0; done < count; done += kAtOnce) {
    const int64_t length = std::min(kAtOnce, count - done);
    split_pairs(codes + done / 2, length / 2, split);
    if (length % 2 != 0) split[length - 1] = codes[(done + length) / 2] & 15;
    look_up(values.data(), of.order + column + done, split, length, x + done);
  }
}

// Whether there are so many elements of a group that its values are worth looking up.
bool looks_up(const IntGroups& of, int64_t column, int64_t count) {
  constexpr int64_t kFewest = 2 * kCodes;
  if (of.bits != 4 || column % 2 != 0) return false;
  if (of.order != nullptr) return count >= of.groups * kFewest;
  return of.group >= kFewest && of.group % 2 == 0;
}

// Elements of one row from a column on.
void dequantize_int_row(const MatrixCodes& matrix, int64_t row, int64_t column, int64_t count,
                        float* x) {
  const IntGroups& of = matrix.ints;
  if (looks_up(of, column, count)) {
    return of.order != nullptr ? look_up_by_order(matrix, row, column, count, x)
                               : look_up_groups(matrix, row, column, count, x);
  }
  widen_codes(of.bits, matrix.codes + row * of.row_bytes, column, count, x);
  if (of.order != nullptr) {
    scale_by_order(of, row, column, count, x);
  } else {
    scale_by_groups(of, row, column, count, x);
  }
  round_to(of.scale_type, x, count);
  if (matrix.through != of.scale_type) round_to(matrix.through, x, count);
}

}  // namespace

void dequantize(const MatrixCodes& matrix, int64_t begin, int64_t count, float* x) {
  if (matrix.kind == Kind::kInt8) {
    const float scale = matrix.scales[begin / matrix.columns] * (1.0f / 127.0f);
    dequantize_bytes(reinterpret_cast<const int8_t*>(matrix.codes) + begin, count, scale, x);
    return;
  }
  if (matrix.kind == Kind::kFp8) {
    return dequantize_fp8_row(matrix, begin / matrix.columns, begin % matrix.columns, count, x);
  }
  if (matrix.kind == Kind::kInts) {
    return dequantize_int_row(matrix, begin / matrix.columns, begin % matrix.columns, count, x);
  }
  const float* table = codes_of(matrix.kind).data();
  while (count > 0) {
    const int64_t block = begin / matrix.block;
    const int64_t length = std::min(count, (block + 1) * matrix.block - begin);
    dequantize_block({table, matrix.scales[block], matrix.through}, matrix.codes, begin, length, x);
    begin += length;
    x += length;
    count -= length;
  }
}

}  // namespace strata::ops::quant::cpu
