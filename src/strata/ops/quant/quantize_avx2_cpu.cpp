// Quantising with AVX2 and F16C. Owns: the instructions. Never: the order of the steps
// (quantize_loops.h).
#include "strata/ops/quant/quantize_kernels.h"

#ifdef STRATA_X86_KERNELS

#include <immintrin.h>

#include "strata/base/float16.h"
#include "strata/ops/vectorize.h"

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#include "strata/ops/quant/quantize_loops.h"

namespace strata::ops::quant::cpu {
namespace {

// The lowest byte of each of eight lanes.
STRATA_INLINE __m128i low_bytes(__m256i x) {
  const __m256i masked = _mm256_and_si256(x, _mm256_set1_epi32(0xFF));
  const __m128i words =
      _mm_packus_epi32(_mm256_castsi256_si128(masked), _mm256_extracti128_si256(masked, 1));
  return _mm_packus_epi16(words, words);
}

struct Avx2 {
  static constexpr int64_t kLanes = 8;
  using Floats = __m256;
  using Ints = __m256i;

  static STRATA_INLINE Floats broadcast(float x) { return _mm256_set1_ps(x); }
  static STRATA_INLINE Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }

  static STRATA_INLINE Floats load(const float* x) { return _mm256_loadu_ps(x); }
  static STRATA_INLINE Floats load(const BFloat16Bits* x) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static STRATA_INLINE Floats load(const HalfBits* x) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
  }

  // 16 elements: those at even places and those at odd ones.
  template <typename Stored>
  static STRATA_INLINE void load_pairs(const Stored* x, Floats& even, Floats& odd) {
    const Floats a = load(x), b = load(x + kLanes);
    even = in_order(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(2, 0, 2, 0)));
    odd = in_order(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1)));
  }
  static STRATA_INLINE void load_pairs(const BFloat16Bits* x, Floats& even, Floats& odd) {
    const Ints both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    odd = _mm256_castsi256_ps(
        _mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }

  static STRATA_INLINE Ints magnitude(Floats x) {
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7FFFFFFF));
  }
  // The same of pairs of 16 bits, and the larger of each pair as 32.
  static STRATA_INLINE Ints add_pairs(const BFloat16Bits* x, Ints most) {
    const Ints both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    return _mm256_max_epu16(most, _mm256_and_si256(both, _mm256_set1_epi16(0x7FFF)));
  }
  static STRATA_INLINE Ints split_pairs(Ints x) {
    const Ints odd = _mm256_and_si256(x, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u)));
    return larger(_mm256_slli_epi32(x, 16), odd);
  }
  static STRATA_INLINE Ints larger(Ints a, Ints b) { return _mm256_max_epu32(a, b); }
  static STRATA_INLINE uint32_t largest(Ints x) {
    __m128i most = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, _MM_SHUFFLE(1, 0, 3, 2)));
    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, _MM_SHUFFLE(2, 3, 0, 1)));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(most));
  }

  static STRATA_INLINE Floats halved(Floats x) {
    return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  // What is not finite is converted to 2^31, whose lowest byte is 0.
  static STRATA_INLINE void store_bytes(Floats x, int8_t* to) {
    const Floats rounded = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), low_bytes(_mm256_cvttps_epi32(rounded)));
  }
  static STRATA_INLINE void store_nibbles(Ints high, Ints low, uint8_t* to) {
    const Ints bytes = _mm256_or_si256(_mm256_slli_epi32(high, 4), low);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), low_bytes(bytes));
  }

  // As with AVX-512, but a table holds eight borders: each half of them has its own, and the first
  // step says from which to take.
  class Search {
   public:
    explicit STRATA_INLINE Search(const Borders& table) {
      float borders[24] = {};
      int32_t codes[16];
      for (int i = 0; i < 15; ++i) borders[i] = table.borders[static_cast<size_t>(i)];
      for (int i = 0; i < 16; ++i) codes[i] = table.by_value[static_cast<size_t>(i)];
      middle_ = _mm256_set1_ps(borders[7]);
      quarter_[0] = _mm256_set1_ps(borders[3]);
      quarter_[1] = _mm256_set1_ps(borders[11]);
      for (int half = 0; half < 2; ++half) {
        by_four_[half] = _mm256_loadu_ps(borders + 8 * half + 1);
        by_two_[half] = _mm256_loadu_ps(borders + 8 * half);
        codes_[half] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + 8 * half));
      }
    }

    // NaN is above all borders.
    template <bool kIsFinite>
    STRATA_INLINE Ints find(Floats x) const {
      const Floats upper = above(x, middle_);
      Ints at = bit_where(above(x, _mm256_blendv_ps(quarter_[0], quarter_[1], upper)), 4);
      at = step(x, at, by_four_, upper, 2);
      at = step(x, at, by_two_, upper, 1);
      return _mm256_blendv_epi8(_mm256_permutevar8x32_epi32(codes_[0], at),
                                _mm256_permutevar8x32_epi32(codes_[1], at),
                                _mm256_castps_si256(upper));
    }

   private:
    static STRATA_INLINE Floats above(Floats x, Floats borders) {
      return _mm256_cmp_ps(x, borders, _CMP_NLE_UQ);
    }
    static STRATA_INLINE Ints bit_where(Floats mask, int bit) {
      return _mm256_and_si256(_mm256_castps_si256(mask), _mm256_set1_epi32(bit));
    }
    static STRATA_INLINE Ints step(Floats x, Ints at, const Floats* borders, Floats upper,
                                   int bit) {
      const Floats border = _mm256_blendv_ps(_mm256_permutevar8x32_ps(borders[0], at),
                                             _mm256_permutevar8x32_ps(borders[1], at), upper);
      return _mm256_or_si256(at, bit_where(above(x, border), bit));
    }
    Floats middle_, quarter_[2], by_four_[2], by_two_[2];
    Ints codes_[2];
  };

 private:
  // Shuffles work in halves of 128 bits: quarters 1 and 2 change places.
  static STRATA_INLINE Floats in_order(Floats x) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), _MM_SHUFFLE(3, 1, 2, 0)));
  }
};

}  // namespace

void quantize_blocks_avx2(const Blocks& blocks) { quantize_blocks_of_any_type<Avx2>(blocks); }
void quantize_rows_avx2(const Rows& rows) { quantize_rows_of_any_type<Avx2>(rows); }

}  // namespace strata::ops::quant::cpu

#pragma GCC pop_options
#endif  // STRATA_X86_KERNELS
