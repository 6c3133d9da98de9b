// Reads a range of a quantised matrix as fp32 on the CPU. Never: checks, threads.
#include <algorithm>
#include <cstring>

#include "strata/base/float16.h"
#include "strata/ops/quant/kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::quant::cpu {

namespace {

// The two elements of every byte, so that one load decodes both.
struct Pairs {
  float values[256][2];
};

const Pairs& pairs_of(Kind kind) {
  const auto make = [](Kind of) {
    Pairs pairs;
    const auto& codes = codes_of(of);
    for (size_t byte = 0; byte < 256; ++byte) {
      pairs.values[byte][0] = codes[byte >> 4];
      pairs.values[byte][1] = codes[byte & 15];
    }
    return pairs;
  };
  static const Pairs kNf4 = make(Kind::kNf4), kFp4 = make(Kind::kFp4);
  return kind == Kind::kFp4 ? kFp4 : kNf4;
}

STRATA_VECTORIZED void scale_in_place(float* x, int64_t n, float scale) {
  for (int64_t i = 0; i < n; ++i) x[i] *= scale;
}

STRATA_VECTORIZED void dequantize_bytes(const int8_t* codes, int64_t n, float scale, float* x) {
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(codes[i]) * scale;
}

// Elements of one block. An odd first or last element uses half a byte.
void dequantize_block(const Pairs& pairs, const uint8_t* codes, int64_t begin, int64_t count,
                      float scale, float* x) {
  float* const first = x;
  const int64_t end = begin + count;
  int64_t at = begin;
  if (at % 2 != 0) *x++ = pairs.values[codes[at++ / 2]][1];
  for (; at + 2 <= end; at += 2, x += 2) {
    std::memcpy(x, pairs.values[codes[at / 2]], 2 * sizeof(float));
  }
  if (at < end) *x = pairs.values[codes[at / 2]][0];
  scale_in_place(first, count, scale);
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

STRATA_VECTORIZED void round_to_bf16(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = from_bf16(to_bf16(x[i]));
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
  if (matrix.through == Element::kBFloat16) round_to_bf16(x, count);
  if (matrix.through == Element::kHalf) {
    for (int64_t i = 0; i < count; ++i) x[i] = fp16_to_float(float_to_fp16(x[i]));
  }
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
  const Pairs& pairs = pairs_of(matrix.kind);
  while (count > 0) {
    const int64_t block = begin / matrix.block;
    const int64_t length = std::min(count, (block + 1) * matrix.block - begin);
    dequantize_block(pairs, matrix.codes, begin, length, matrix.scales[block], x);
    begin += length;
    x += length;
    count -= length;
  }
}

}  // namespace strata::ops::quant::cpu
