// Decodes MXFP4 on the CPU. Never: checks.
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "strata/base/float16.h"
#include "strata/ops/quant/kernels.h"
#include "strata/ops/quant/mxfp4_rows.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::quant::cpu {
namespace {

constexpr int64_t kColumns = 64;  // decoded at a time
constexpr int64_t kWords = 4;     // of 8 codes, in a block
constexpr int64_t kOfWord = kMxfp4Block / kWords;

// One block of each of some columns, turned around: what a row's elements are in lies side by side.
struct Tile {
  uint32_t words[kWords][kColumns];
  float powers[kColumns];
};

// 2^(scale - 127); infinite for the largest, as in transformers.
float power_of(uint8_t scale) {
  const uint32_t exponent = uint32_t{scale} << 23;
  return bits_float(scale == 0 ? 0x00400000u : exponent);
}

void read_tile(const Mxfp4Codes& matrix, int64_t block, int64_t column, int64_t count, Tile& tile) {
  const int64_t of_column = matrix.rows / kMxfp4Block;
  for (int64_t c = 0; c < count; ++c) {
    const int64_t at = (column + c) * of_column + block;
    const uint8_t* codes = matrix.codes + at * (kMxfp4Block / 2);
    for (int64_t w = 0; w < kWords; ++w) std::memcpy(&tile.words[w][c], codes + 4 * w, 4);
    tile.powers[c] = power_of(matrix.scales[at]);
  }
}

// The bits of a code's value, without a table: the compiler makes vectors of this.
STRATA_INLINE uint32_t decode(uint32_t code, float power) {
  constexpr uint32_t kHalf = 0x3F000000u;  // of 0.5f
  const uint32_t magnitude = code & 7u;
  const uint32_t small = (0u - magnitude) & kHalf;  // 0 or 0.5
  const uint32_t bits = magnitude < 2u ? small : (magnitude << 22) + kHalf;
  return float_bits(bits_float(bits) * power) | (code & 8u) << 28;
}

STRATA_VECTORIZED void decode_row(const uint32_t* words, const float* powers, int shift, int64_t n,
                                  float* out) {
  for (int64_t c = 0; c < n; ++c) out[c] = bits_float(decode(words[c] >> shift, powers[c]));
}

STRATA_VECTORIZED void decode_row_bf16(const uint32_t* words, const float* powers, int shift,
                                       int64_t n, uint16_t* out) {
  // What is cut off is zero.
  for (int64_t c = 0; c < n; ++c) {
    out[c] = static_cast<uint16_t>(decode(words[c] >> shift, powers[c]) >> 16);
  }
}

STRATA_VECTORIZED void decode_block(const uint8_t* codes, float power, float* out) {
  for (int64_t i = 0; i < kMxfp4Block / 2; ++i) {
    out[2 * i] = bits_float(decode(codes[i] & 15u, power));
    out[2 * i + 1] = bits_float(decode(codes[i] >> 4, power));
  }
}

void round_to_half(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = fp16_to_float(float_to_fp16(x[i]));
}

// `row`: in the block.
void write_row(const Tile& tile, int64_t row, int64_t count, const DecodedRows& out, void* to) {
  const uint32_t* words = tile.words[row / kOfWord];
  const int shift = static_cast<int>(4 * (row % kOfWord));
  if (out.type == Element::kBFloat16 && !out.through_half) {
    return decode_row_bf16(words, tile.powers, shift, count, static_cast<uint16_t*>(to));
  }
  std::array<float, kColumns> scratch;
  float* values = begin_row(out.type, to, scratch.data());
  decode_row(words, tile.powers, shift, count, values);
  if (out.through_half) round_to_half(values, count);
  finish_row(out.type, values, count, to);
}

}  // namespace

void decode_mxfp4_row(const Mxfp4Codes& matrix, int64_t column, int64_t first, int64_t count,
                      float* out) {
  const int64_t begin = column * (matrix.rows / kMxfp4Block) + first / kMxfp4Block;
  for (int64_t block = 0; block < count / kMxfp4Block; ++block) {
    decode_block(matrix.codes + (begin + block) * (kMxfp4Block / 2),
                 power_of(matrix.scales[begin + block]), out + block * kMxfp4Block);
  }
}

void decode_mxfp4(const Mxfp4Codes& matrix, const Window& window, const DecodedRows& out) {
  const int64_t first_block = window.first_row / kMxfp4Block;
  const int64_t num_blocks = (window.last_row + kMxfp4Block - 1) / kMxfp4Block - first_block;
  const int64_t num_columns = window.last_column - window.first_column;
  const int64_t num_tiles = (num_columns + kColumns - 1) / kColumns * num_blocks;
  // Down the columns, whose blocks share lines of the cache.
  at::parallel_for(0, num_tiles, /*grain_size=*/8, [&](int64_t from, int64_t to) {
    Tile tile;
    for (int64_t i = from; i < to; ++i) {
      const int64_t block = first_block + i % num_blocks, from_left = i / num_blocks * kColumns;
      const int64_t count = std::min(kColumns, num_columns - from_left);
      read_tile(matrix, block, window.first_column + from_left, count, tile);
      const int64_t first = std::max(window.first_row, block * kMxfp4Block);
      const int64_t last = std::min(window.last_row, (block + 1) * kMxfp4Block);
      for (int64_t row = first; row < last; ++row) {
        const int64_t place = (row - window.first_row) * out.stride + from_left;
        write_row(tile, row - block * kMxfp4Block, count, out, at_index(out.type, out.data, place));
      }
    }
  });
}

}  // namespace strata::ops::quant::cpu
