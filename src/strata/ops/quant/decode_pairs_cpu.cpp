// The table lies in registers, where there are wide ones: one instruction looks up sixteen codes.
#include "strata/ops/quant/decode_pairs.h"

#include <cstring>

#include "strata/ops/vectorize.h"

#ifdef STRATA_X86_KERNELS
#include <immintrin.h>
#endif

namespace strata::ops::quant::cpu {
namespace {

float value_of(const CodeValues& values, int code) {
  const float value = values.table[code] * values.scale;
  return values.through == Element::kBFloat16 ? from_bf16(to_bf16(value)) : value;
}

void decode_rest(const CodeValues& values, const uint8_t* codes, int64_t begin, int64_t pairs,
                 float* x) {
  const int first = values.low_half_first ? 0 : 4, second = 4 - first;
  for (int64_t i = begin; i < pairs; ++i) {
    x[2 * i] = value_of(values, codes[i] >> first & 15);
    x[2 * i + 1] = value_of(values, codes[i] >> second & 15);
  }
}

#ifdef STRATA_X86_KERNELS

// The intrinsics of this compiler leave what a mask does not choose undefined, and it warns of that
// (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

// A byte becomes a word of 64 bits, whose halves are the places of its two elements in the table:
// the instruction that looks up reads no more bits of a place than the table has. So the byte
// itself is the place of its low half, and moved on by 28 bits that of its high half in the second
// place.
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")

// Rounds to nearest, ties to even; NaN stays NaN.
STRATA_INLINE __m512 rounded(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i nearest = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
  const __m512i cut = _mm512_and_si512(nearest, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_castsi512_ps(_mm512_mask_mov_epi32(cut, is_nan, _mm512_set1_epi32(0x7FC00000)));
}

template <bool kLowFirst>
STRATA_INLINE __m512i places_of(__m512i bytes) {
  return kLowFirst ? _mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28))
                   : _mm512_or_si512(_mm512_srli_epi64(bytes, 4), _mm512_slli_epi64(bytes, 32));
}

template <bool kLowFirst>
int64_t decode_avx512(const CodeValues& of, const uint8_t* codes, int64_t pairs, float* x) {
  __m512 values = _mm512_mul_ps(_mm512_loadu_ps(of.table), _mm512_set1_ps(of.scale));
  if (of.through == Element::kBFloat16) values = rounded(values);
  int64_t i = 0;
  for (; i + 8 <= pairs; i += 8) {
    const __m512i bytes =
        _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + i)));
    _mm512_storeu_ps(x + 2 * i, _mm512_permutexvar_ps(places_of<kLowFirst>(bytes), values));
  }
  return i;
}

#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")

STRATA_INLINE __m256 rounded(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i nearest = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
  const __m256i cut = _mm256_and_si256(nearest, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u)));
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
  return _mm256_blendv_ps(_mm256_castsi256_ps(cut), nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

template <bool kLowFirst>
STRATA_INLINE __m256i places_of(__m256i bytes) {
  return kLowFirst ? _mm256_or_si256(bytes, _mm256_slli_epi64(bytes, 28))
                   : _mm256_or_si256(_mm256_srli_epi64(bytes, 4), _mm256_slli_epi64(bytes, 32));
}

template <bool kLowFirst>
int64_t decode_avx2(const CodeValues& of, const uint8_t* codes, int64_t pairs, float* x) {
  const __m256 factor = _mm256_set1_ps(of.scale);
  __m256 first = _mm256_mul_ps(_mm256_loadu_ps(of.table), factor);
  __m256 second = _mm256_mul_ps(_mm256_loadu_ps(of.table + 8), factor);
  if (of.through == Element::kBFloat16) {
    first = rounded(first);
    second = rounded(second);
  }
  int64_t i = 0;
  for (; i + 4 <= pairs; i += 4) {
    int32_t four;
    std::memcpy(&four, codes + i, sizeof four);
    const __m256i bytes = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
    const __m256i places = places_of<kLowFirst>(bytes);
    // The fourth bit of a place, as a sign, chooses the half of the table.
    const __m256 halves = _mm256_castsi256_ps(_mm256_slli_epi32(places, 28));
    _mm256_storeu_ps(x + 2 * i, _mm256_blendv_ps(_mm256_permutevar8x32_ps(first, places),
                                                 _mm256_permutevar8x32_ps(second, places), halves));
  }
  return i;
}

#pragma GCC pop_options

#endif

}  // namespace

void decode_pairs(const CodeValues& values, const uint8_t* codes, int64_t pairs, float* x,
                  [[maybe_unused]] InstructionSet set) {
  int64_t done = 0;
#ifdef STRATA_X86_KERNELS
  const bool low = values.low_half_first;
  if (set == InstructionSet::kAvx512) {
    done = (low ? decode_avx512<true> : decode_avx512<false>)(values, codes, pairs, x);
  }
  if (set == InstructionSet::kAvx2) {
    done = (low ? decode_avx2<true> : decode_avx2<false>)(values, codes, pairs, x);
  }
#endif
  decode_rest(values, codes, done, pairs, x);
}

}  // namespace strata::ops::quant::cpu
