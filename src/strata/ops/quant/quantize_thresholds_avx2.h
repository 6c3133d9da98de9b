// FP4 codes of bf16 by comparing bits, 16 elements to a register. Owns: the thresholds. Never:
// other types, whose elements have more bits than a comparison takes.
//
// The scaled element grows with the bits of its magnitude, rounding included. So where it passes a
// border is a number of those bits, which a block finds for each border before it looks at
// elements. This decides like the comparison of scaled elements where they meet a border exactly,
// as fractions of two numbers of eight bits often do (a third of 5/24, say).
//
// Requires: included where AVX2 is on, after immintrin.h.
#pragma once

#include "strata/ops/quant/quantize_kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::quant::cpu {

// Requires: borders that are the same on both sides of 0, and one at 0.
class Thresholds {
 public:
  explicit STRATA_INLINE Thresholds(const Borders& table) {
    float borders[8];
    uint8_t codes[16];
    for (size_t i = 0; i < kCount; ++i) borders[i] = table.borders[8 + i];
    borders[kCount] = 2.0f;  // no element is
    for (size_t passed = 0; passed < 8; ++passed) {
      codes[passed] = table.by_value[7 - passed];
      codes[8 + passed] = table.by_value[8 + passed];
    }
    borders_ = _mm256_loadu_ps(borders);
    codes_ = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  }

  // Whether it coded the n elements of a block, a multiple of 32, whose scale is `largest`. Not
  // where a scaled element may be too small to be told from 0. Requires: as code_block's ordinary.
  STRATA_INLINE bool code_block(const BFloat16Bits* x, int64_t n, float largest, float inverse,
                                uint8_t* to) const {
    constexpr float kLargest = 65536.0f;
    if (!(largest <= kLargest)) return false;
    const __m256i limits = limits_of(largest, inverse);
    __m256i limit[kCount];
    for (size_t i = 0; i < kCount; ++i) {
      const auto bytes = static_cast<int16_t>(0x0100 + 0x0202 * i);
      limit[i] = _mm256_shuffle_epi8(limits, _mm256_set1_epi16(bytes));
    }
    for (int64_t i = 0; i < n; i += 32) {
      const __m256i places =
          _mm256_packus_epi16(places_of(x + i, limit), places_of(x + i + 16, limit));
      // 16 times the first of two and the second.
      const __m256i pairs =
          _mm256_maddubs_epi16(_mm256_shuffle_epi8(codes_, places), _mm256_set1_epi16(0x0110));
      const __m128i packed =
          _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i / 2),
                       _mm_shuffle_epi32(packed, _MM_SHUFFLE(3, 1, 2, 0)));
    }
    return true;
  }

 private:
  static constexpr size_t kCount = 7;  // borders above 0
  static constexpr int32_t kSign = 0x8000;

  // What an element's order (below) must exceed to be beyond a border, eight words in each half.
  // A positive one is from the first magnitude m on whose scaled value exceeds the border, a
  // negative one from the first on that reaches it: m or the one before, of which the sum says
  // both, as orders are twice magnitudes and one more for negative elements.
  STRATA_INLINE __m256i limits_of(float largest, float inverse) const {
    // Rounded to the next magnitude of bf16: those beside it are half a step away from the border,
    // which is far more than these products err.
    const __m256i product = _mm256_castps_si256(_mm256_mul_ps(borders_, _mm256_set1_ps(largest)));
    const __m256i next = _mm256_and_si256(_mm256_add_epi32(product, _mm256_set1_epi32(0x8000)),
                                          _mm256_set1_epi32(static_cast<int>(0xFFFF0000u)));
    const __m256 scaled = _mm256_mul_ps(_mm256_castsi256_ps(next), _mm256_set1_ps(inverse));
    const __m256i met = _mm256_add_epi32(mask(_mm256_cmp_ps(scaled, borders_, _CMP_GT_OQ)),
                                         mask(_mm256_cmp_ps(scaled, borders_, _CMP_GE_OQ)));
    const __m256i limit = _mm256_add_epi32(_mm256_add_epi32(_mm256_srli_epi32(next, 15), met),
                                           _mm256_set1_epi32(1 - kSign));
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(limit, limit), _MM_SHUFFLE(2, 0, 2, 0));
  }
  static STRATA_INLINE __m256i mask(__m256 x) { return _mm256_castps_si256(x); }

  // Of 16 elements as words: the borders that the magnitude is beyond, and 8 for one above 0.
  static STRATA_INLINE __m256i places_of(const BFloat16Bits* x, const __m256i* limit) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    const __m256i sign = _mm256_xor_si256(_mm256_srai_epi16(bits, 15), _mm256_set1_epi16(-kSign));
    // Twice the magnitude, one more where it is negative; less 2^15, so that signed numbers do.
    const __m256i order = _mm256_sub_epi16(_mm256_add_epi16(bits, bits), sign);
    __m256i place =
        _mm256_and_si256(_mm256_cmpgt_epi16(bits, _mm256_setzero_si256()), _mm256_set1_epi16(8));
    for (size_t i = 0; i < kCount; ++i) {
      place = _mm256_sub_epi16(place, _mm256_cmpgt_epi16(order, limit[i]));
    }
    return place;
  }

  __m256 borders_;
  __m256i codes_;
};

}  // namespace strata::ops::quant::cpu
