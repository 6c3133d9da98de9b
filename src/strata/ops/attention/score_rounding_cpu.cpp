// Rounding of scores, with the processor's instruction for it where there is one: it takes a fourth
// of the time of integer arithmetic, and numbers below the smallest normal one for zero.
#include "strata/ops/attention/score_rounding.h"

#include "strata/ops/instruction_set.h"
#include "strata/ops/matmul/block_product.h"
#include "strata/ops/vectorize.h"

#ifdef STRATA_X86_KERNELS

#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,avx512bf16")

namespace strata::ops::cpu {
namespace {

STRATA_INLINE __m256i rounded(const float* from) {
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_loadu_ps(from)));
}
// gcc 12 finds the same without a mask uninitialised.
constexpr __mmask16 kAll = 0xFFFF;
STRATA_INLINE __m512i low_halves(__m256i x) { return _mm512_maskz_cvtepu16_epi32(kAll, x); }
STRATA_INLINE __m512i high_halves(__m256i x) {
  return _mm512_maskz_slli_epi32(kAll, low_halves(x), 16);
}

float round_row_512(const float* from, int64_t n, int64_t columns, uint16_t* to) {
  __m512 added = _mm512_setzero_ps();
  for (int64_t j = 0; j < n; j += 16) {
    const __m256i x = rounded(from + j);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + j), x);
    added += _mm512_castsi512_ps(high_halves(x)) - _mm512_loadu_ps(from + j);
  }
  for (int64_t j = n; j < columns; j += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + j), _mm256_setzero_si256());
  }
  float sums[16], sum = 0;
  _mm512_storeu_ps(sums, added);
  for (const float x : sums) sum += x;
  return sum;
}

void round_row_pair_512(const float* low, int64_t num_low, const float* high, int64_t num_high,
                        int64_t columns, uint32_t* to) {
  int64_t j = 0;
  for (; j < num_low; j += 16) {
    _mm512_storeu_si512(to + j, low_halves(rounded(low + j)) | high_halves(rounded(high + j)));
  }
  for (; j < num_high; j += 16) _mm512_storeu_si512(to + j, high_halves(rounded(high + j)));
  for (; j < columns; j += 16) _mm512_storeu_si512(to + j, _mm512_setzero_si512());
}

}  // namespace
}  // namespace strata::ops::cpu
#pragma GCC pop_options

#endif

namespace strata::ops::cpu {
namespace {

STRATA_VECTORIZED float round_row_plain(const float* from, int64_t n, int64_t columns,
                                        uint16_t* to) {
  float added = 0;
#pragma omp simd reduction(+ : added)
  for (int64_t j = 0; j < n; ++j) {
    to[j] = to_bf16(from[j]);
    added += from_bf16(to[j]) - from[j];
  }
  for (int64_t j = n; j < columns; ++j) to[j] = 0;
  return added;
}

STRATA_VECTORIZED void round_row_pair_plain(const float* low, int64_t num_low, const float* high,
                                            int64_t num_high, int64_t columns, uint32_t* to) {
  for (int64_t j = 0; j < num_low; ++j) {
    to[j] = to_bf16(low[j]) | static_cast<uint32_t>(to_bf16(high[j])) << 16;
  }
  for (int64_t j = num_low; j < num_high; ++j)
    to[j] = static_cast<uint32_t>(to_bf16(high[j])) << 16;
  for (int64_t j = num_high; j < columns; ++j) to[j] = 0;
}

}  // namespace

float round_row(const float* from, int64_t n, int64_t columns, uint16_t* to) {
#ifdef STRATA_X86_KERNELS
  if (has_pair_product()) return round_row_512(from, n, columns, to);
#endif
  return round_row_plain(from, n, columns, to);
}

void round_row_pair(const float* low, int64_t num_low, const float* high, int64_t num_high,
                    int64_t columns, uint32_t* to) {
#ifdef STRATA_X86_KERNELS
  if (has_pair_product()) return round_row_pair_512(low, num_low, high, num_high, columns, to);
#endif
  round_row_pair_plain(low, num_low, high, num_high, columns, to);
}

}  // namespace strata::ops::cpu
