// The rounding of tiles, with the processor's instruction for it where there is one. A function of
// its own for a tile: a call for each row takes longer than the row's 32 numbers.
#include "strata/ops/matmul/rounded_tiles.h"

#include "strata/ops/instruction_set.h"
#include "strata/ops/matmul/block_product.h"
#include "strata/ops/vectorize.h"

#ifdef STRATA_X86_KERNELS

#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,avx512bf16")

namespace strata::ops::cpu {
namespace {

constexpr int64_t kWidth = 16;

STRATA_INLINE __m512 widened(__mmask16 mask, const uint16_t* from) {
  const __m256i x = _mm256_maskz_loadu_epi16(mask, from);
  return _mm512_castsi512_ps(
      _mm512_maskz_slli_epi32(mask, _mm512_maskz_cvtepu16_epi32(mask, x), 16));
}

template <bool kAdd>
STRATA_INLINE void round_row(int64_t columns, const float* sums, uint16_t* to) {
  for (int64_t j = 0; j < columns; j += kWidth) {
    const int64_t left = columns - j;
    const auto mask = static_cast<__mmask16>(left >= kWidth ? 0xFFFF : (1 << left) - 1);
    __m512 x = _mm512_maskz_loadu_ps(mask, sums + j);
    if constexpr (kAdd) x += widened(mask, to + j);
    _mm256_mask_storeu_epi16(to + j, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
  }
}

template <bool kAdd>
void round_tile_512(TileSize size, const float* sums, int64_t sums_stride, uint16_t* to,
                    int64_t to_stride) {
  for (int64_t r = 0; r < size.rows; ++r) {
    round_row<kAdd>(size.columns, sums + r * sums_stride, to + r * to_stride);
  }
}

}  // namespace
}  // namespace strata::ops::cpu
#pragma GCC pop_options

#endif

namespace strata::ops::cpu {
namespace {

STRATA_VECTORIZED void round_tile_plain(TileSize size, const float* sums, int64_t sums_stride,
                                        uint16_t* to, int64_t to_stride, bool add) {
  for (int64_t r = 0; r < size.rows; ++r) {
    const float* from = sums + r * sums_stride;
    uint16_t* row = to + r * to_stride;
    if (add) {
      for (int64_t j = 0; j < size.columns; ++j) row[j] = to_bf16(from[j] + from_bf16(row[j]));
    } else {
      for (int64_t j = 0; j < size.columns; ++j) row[j] = to_bf16(from[j]);
    }
  }
}

}  // namespace

void round_tile(TileSize size, const float* sums, int64_t sums_stride, uint16_t* to,
                int64_t to_stride, bool add) {
#ifdef STRATA_X86_KERNELS
  if (has_pair_product()) {
    return add ? round_tile_512<true>(size, sums, sums_stride, to, to_stride)
               : round_tile_512<false>(size, sums, sums_stride, to, to_stride);
  }
#endif
  round_tile_plain(size, sums, sums_stride, to, to_stride, add);
}

}  // namespace strata::ops::cpu
