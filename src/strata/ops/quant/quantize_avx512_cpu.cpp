// Quantising with AVX-512. Owns: the instructions. Never: the order of the steps
// (quantize_loops.h).
#include "strata/ops/quant/quantize_kernels.h"

#ifdef STRATA_X86_KERNELS

#include <immintrin.h>

#include "strata/base/float16.h"
#include "strata/ops/vectorize.h"

// The intrinsics of this compiler leave what a mask does not choose undefined, and it warns of that
// (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
#include "strata/ops/quant/quantize_loops.h"

namespace strata::ops::quant::cpu {
namespace {

// What the kinds of codes have in common.
struct Lanes512 {
  static constexpr int64_t kLanes = 16;
  using Floats = __m512;
  using Ints = __m512i;
  typedef uint16_t Words __attribute__((vector_size(32)));
  typedef uint32_t DoubleWords __attribute__((vector_size(64)));

  static STRATA_INLINE Floats broadcast(float x) { return _mm512_set1_ps(x); }
  static STRATA_INLINE Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }

  static STRATA_INLINE Floats widen(const HalfBits* x) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  }

  // 32 elements: those at even places and those at odd ones.
  template <typename Stored>
  static STRATA_INLINE void load_pairs(const Stored* x, Floats& even, Floats& odd) {
    const Floats a = load<Lanes512>(x), b = load<Lanes512>(x + kLanes);
    const Ints places =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    even = _mm512_permutex2var_ps(a, places, b);
    odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(places, _mm512_set1_epi32(1)), b);
  }
  static STRATA_INLINE void load_pairs(const BFloat16Bits* x, Floats& even, Floats& odd) {
    const Ints both = _mm512_loadu_si512(x);
    even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    odd = _mm512_castsi512_ps(
        _mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }

  static STRATA_INLINE Ints magnitude(Floats x) {
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7FFFFFFF));
  }
  // The same of pairs of 16 bits, and the larger of each pair as 32.
  static STRATA_INLINE Ints add_pairs(const BFloat16Bits* x, Ints most) {
    return _mm512_max_epu16(most,
                            _mm512_and_si512(_mm512_loadu_si512(x), _mm512_set1_epi16(0x7FFF)));
  }
  static STRATA_INLINE Ints split_pairs(Ints x) {
    const Ints odd = _mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)));
    return larger(_mm512_slli_epi32(x, 16), odd);
  }
  static STRATA_INLINE Ints larger(Ints a, Ints b) { return _mm512_max_epu32(a, b); }
  static STRATA_INLINE uint32_t largest(Ints x) { return _mm512_reduce_max_epu32(x); }

  static STRATA_INLINE uint32_t largest_of_pairs(Ints x) {
    const __m256i half =
        _mm256_max_epu16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    const __m128i most =
        _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(most, _mm_set1_epi16(-1)));
    return ~static_cast<uint32_t>(_mm_cvtsi128_si32(least)) << 16;
  }

  static STRATA_INLINE Floats halved(Floats x) {
    return _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  // What is not finite is converted to 2^31, whose lowest byte is 0.
  static STRATA_INLINE void store_bytes(Floats x, int8_t* to) {
    const Ints rounded = _mm512_cvt_roundps_epi32(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(rounded));
  }
  static STRATA_INLINE void store_nibbles(Ints high, Ints low, uint8_t* to) {
    const Ints bytes = _mm512_or_si512(_mm512_slli_epi32(high, 4), low);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(bytes));
  }
};

// The code of the border that each lane lies above last, by four halvings. The borders of the last
// three steps are looked up at 0, 8 or 0, 4, ... in tables that start further on.
class Halvings {
 public:
  explicit STRATA_INLINE Halvings(const Borders& table) {
    float borders[24] = {};
    int32_t codes[16];
    for (size_t i = 0; i < 15; ++i) borders[i] = table.borders[i];
    for (size_t i = 0; i < 16; ++i) codes[i] = table.by_value[i];
    middle_ = _mm512_set1_ps(borders[7]);
    by_eight_ = _mm512_loadu_ps(borders + 3);
    by_four_ = _mm512_loadu_ps(borders + 1);
    by_two_ = _mm512_loadu_ps(borders);
    codes_ = _mm512_loadu_si512(codes);
  }

  // NaN is above all borders.
  STRATA_INLINE __m512i find(__m512 x) const {
    __m512i at = _mm512_maskz_mov_epi32(above(x, middle_), _mm512_set1_epi32(8));
    at = step(x, at, by_eight_, 4);
    at = step(x, at, by_four_, 2);
    at = step(x, at, by_two_, 1);
    return _mm512_permutexvar_epi32(at, codes_);
  }

 private:
  static STRATA_INLINE __mmask16 above(__m512 x, __m512 borders) {
    return _mm512_cmp_ps_mask(x, borders, _CMP_NLE_UQ);
  }
  static STRATA_INLINE __m512i step(__m512 x, __m512i at, __m512 borders, int bit) {
    const __mmask16 is_above = above(x, _mm512_permutexvar_ps(at, borders));
    return _mm512_mask_or_epi32(at, is_above, at, _mm512_set1_epi32(bit));
  }
  __m512 middle_, by_eight_, by_four_, by_two_;
  __m512i codes_;
};

// Half as many instructions: [-1, 1] in buckets of 1 / 16, of which each has one border at most,
// and a code on either side of it. Buckets -16 and 16 share a place: their border is 0. FP4 has
// three borders around 0, at the same distance: beyond the outer two (`kHasInner`) a code is
// another by the same bits everywhere.
template <bool kHasInner>
class Buckets {
 public:
  explicit STRATA_INLINE Buckets(const Borders& table) : halvings_(table) {
    float borders[32] = {};
    int32_t below[32] = {}, above[32] = {};
    if (kHasInner) flip_ = table.by_value[6] ^ table.by_value[7];
    size_t passed = 0;
    for (int bucket = -15; bucket <= 15; ++bucket) {
      const auto at = static_cast<size_t>(bucket & 31);
      const auto ends = [&](size_t border) {
        return border < 15 && table.borders[border] * 16 < static_cast<float>(bucket) + 0.5f;
      };
      if (kHasInner && bucket == 0) ++passed;  // the outer one on the left
      borders[at] = ends(passed) ? table.borders[passed] : 2.0f;
      below[at] = table.by_value[passed];
      if (ends(passed)) ++passed;
      above[at] = table.by_value[passed];
      if (kHasInner && bucket == 0) {
        ++passed;
      } else {
        below[at] ^= flip_;
        above[at] ^= flip_;
      }
    }
    below[16] = table.by_value[0] ^ flip_;
    above[16] = table.by_value[15] ^ flip_;
    for (int half = 0; half < 2; ++half) {
      borders_[half] = _mm512_loadu_ps(borders + 16 * half);
      below_[half] = _mm512_loadu_si512(below + 16 * half);
      above_[half] = _mm512_loadu_si512(above + 16 * half);
    }
    right_ = _mm512_set1_epi32(static_cast<int>(float_bits(table.borders[8]) << 1));
  }

  template <bool kIsOrdinary>
  STRATA_INLINE __m512i find(__m512 x) const {
    if (!kIsOrdinary) return halvings_.find(x);
    // Adding 1.5 * 2^23 leaves the rounded sum in the low bits, of which the table reads five. A
    // bucket next to the right one has the same code where they meet.
    const __m512 shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(16.0f), _mm512_set1_ps(12582912.0f));
    const __m512i at = _mm512_castps_si512(shifted);
    const __m512 border = _mm512_permutex2var_ps(borders_[0], at, borders_[1]);
    const __mmask16 is_above = _mm512_cmp_ps_mask(x, border, _CMP_GT_OQ);
    const __m512i code =
        _mm512_mask_blend_epi32(is_above, _mm512_permutex2var_epi32(below_[0], at, below_[1]),
                                _mm512_permutex2var_epi32(above_[0], at, above_[1]));
    if (!kHasInner) return code;
    // x > right or x <= -right: the sign as the lowest bit makes it one comparison.
    const __mmask16 is_beyond =
        _mm512_cmpgt_epu32_mask(_mm512_rol_epi32(_mm512_castps_si512(x), 1), right_);
    return _mm512_mask_xor_epi32(code, is_beyond, code, _mm512_set1_epi32(flip_));
  }

 private:
  Halvings halvings_;
  __m512 borders_[2];
  __m512i below_[2], above_[2], right_;
  int32_t flip_ = 0;
};

struct Nf4Lanes : Lanes512 {
  using Search = Buckets</*kHasInner=*/false>;
};
struct Fp4Lanes : Lanes512 {
  using Search = Buckets</*kHasInner=*/true>;
};

}  // namespace

void quantize_blocks_avx512(const Blocks& blocks) {
  if (blocks.kind == Kind::kFp4) return quantize_blocks_of_any_type<Fp4Lanes>(blocks);
  quantize_blocks_of_any_type<Nf4Lanes>(blocks);
}
void quantize_rows_avx512(const Rows& rows) { quantize_rows_of_any_type<Lanes512>(rows); }

}  // namespace strata::ops::quant::cpu

#pragma GCC pop_options
#endif  // STRATA_X86_KERNELS
