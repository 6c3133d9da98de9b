// Blockwise quantisation to 4 bits on the CPU. Never: checks, double quantisation.
//
// Vectors of 16 floats: the compiler splits them where registers are narrower.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "strata/ops/quant/kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::quant::cpu {

namespace {

constexpr int64_t kLanes = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));

// Below this a scale counts as this: 1 / scale stays finite.
constexpr float kSmallestScale = 1e-38f;

// By reference: vectors have no calling convention where their registers are missing.
STRATA_INLINE void load(const float* from, Floats& lanes) {
  std::memcpy(&lanes, from, sizeof lanes);
}

// The largest magnitude of n elements, NaN if one is NaN. Magnitudes are ordered like their bits,
// with NaN above infinity.
STRATA_INLINE float largest_magnitude(const float* x, int64_t n) {
  Ints most = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Floats lanes;
    load(x + i, lanes);
    const Ints bits = (Ints)lanes & 0x7FFFFFFF;
    most = bits > most ? bits : most;
  }
  int32_t result = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) result = std::max(result, most[lane]);
  for (; i < n; ++i) {
    result = std::max(result, static_cast<int32_t>(float_bits(x[i]) & 0x7FFFFFFFu));
  }
  return bits_float(static_cast<uint32_t>(result));
}

// Number of borders below each lane, by four halvings; NaN is above all borders.
struct Search {
  Floats borders;  // the last lane is not used
  Ints by_value;
};

STRATA_INLINE void find_codes(const Search& search, const Floats& x, Ints& codes) {
  const Ints step8 = {8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8};
  Ints index = ~(x <= search.borders[7]) & step8;
  index |= ~(x <= __builtin_shuffle(search.borders, index + 3)) & 4;
  index |= ~(x <= __builtin_shuffle(search.borders, index + 1)) & 2;
  index |= ~(x <= __builtin_shuffle(search.borders, index)) & 1;
  codes = __builtin_shuffle(search.by_value, index);
}

STRATA_INLINE void pack(const Ints& even_odd, uint8_t* to) {
  // Little endian: the first element of a pair is the low half of 64 bits.
  typedef uint64_t Longs __attribute__((vector_size(64)));
  typedef uint8_t Bytes8 __attribute__((vector_size(8)));
  const Longs pairs = (Longs)even_odd;
  const Bytes8 bytes = __builtin_convertvector((pairs << 4) | (pairs >> 32), Bytes8);
  std::memcpy(to, &bytes, sizeof bytes);
}

// The reference multiplies by 1 / scale, but divides the elements of a short block (`divides`).
STRATA_INLINE void code_block(const Search& search, const float* x, int64_t n, float scale,
                              bool divides, uint8_t* codes) {
  const float inverse = 1.0f / scale;
  int64_t i = 0;
  for (; i < n; i += kLanes) {
    float tail[kLanes] = {};
    const int64_t count = std::min(kLanes, n - i);
    if (count < kLanes) std::memcpy(tail, x + i, static_cast<size_t>(count) * sizeof(float));
    Floats lanes;
    load(count < kLanes ? tail : x + i, lanes);
    lanes = divides ? lanes / scale : lanes * inverse;
    Ints found;
    find_codes(search, lanes, found);
    if (count == kLanes) {
      pack(found, codes + i / 2);
    } else {
      uint8_t packed[kLanes / 2];
      pack(found, packed);
      std::memcpy(codes + i / 2, packed, static_cast<size_t>((count + 1) / 2));
    }
  }
}

STRATA_VECTORIZED void quantize_blocks(const Borders& table, int64_t block, const float* x,
                                       int64_t n, uint8_t* codes, float* scales) {
  Search search = {};
  for (int i = 0; i < 15; ++i) search.borders[i] = table.borders[static_cast<size_t>(i)];
  for (int i = 0; i < 16; ++i) search.by_value[i] = table.by_value[static_cast<size_t>(i)];
  for (int64_t begin = 0; begin < n; begin += block) {
    const int64_t count = std::min(block, n - begin);
    const bool is_short = count < block;
    const float largest = largest_magnitude(x + begin, count);
    const float scale = largest < kSmallestScale ? kSmallestScale : largest;
    *scales++ = is_short ? scale : largest;
    code_block(search, x + begin, count, scale, is_short, codes + begin / 2);
  }
}

}  // namespace

void quantize_4bit(Kind kind, int64_t block, const float* x, int64_t n, uint8_t* codes,
                   float* scales) {
  const Borders& table = borders_of(kind);
  const int64_t blocks = (n + block - 1) / block;
  const int64_t grain = std::max<int64_t>(1, 65536 / block);
  at::parallel_for(0, blocks, grain, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * block;
    quantize_blocks(table, block, x + first, std::min(end * block, n) - first, codes + first / 2,
                    scales + begin);
  });
}

STRATA_VECTORIZED static void quantize_row(const float* x, int64_t columns, int8_t* codes,
                                           float* scale) {
  float largest = 0;
  bool has_nan = false;
  for (int64_t i = 0; i < columns; ++i) {
    const float a = __builtin_fabsf(x[i]);
    has_nan |= !(a == a);
    largest = a > largest ? a : largest;
  }
  if (has_nan) largest = __builtin_nanf("");
  *scale = largest;
  // The reference multiplies by 127 after taking the reciprocal.
  const float inverse = 1.0f / largest;
  const float factor = inverse * 127.0f;
  for (int64_t i = 0; i < columns; ++i) {
    // Halves to even. (Adding and taking off 1.5 * 2^23 would be fused with the product.) What is
    // not finite becomes 0, as the conversion of the processor does.
    const float rounded = __builtin_rintf(x[i] * factor);
    codes[i] = static_cast<int8_t>(rounded >= -128 && rounded <= 127 ? rounded : 0.0f);
  }
}

void quantize_rows(const float* x, int64_t rows, int64_t columns, int8_t* codes, float* scales) {
  const int64_t grain = std::max<int64_t>(1, 65536 / std::max<int64_t>(1, columns));
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      quantize_row(x + r * columns, columns, codes + r * columns, scales + r);
    }
  });
}

}  // namespace strata::ops::quant::cpu
