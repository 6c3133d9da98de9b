// Quantising with AVX2 and F16C. Owns: the instructions. Never: the order of the steps
// (quantize_loops.h).
#include "strata/ops/quant/quantize_kernels.h"

#ifdef STRATA_X86_KERNELS

#include <immintrin.h>

#include <bit>
#include <cmath>

#include "strata/base/float16.h"
#include "strata/ops/vectorize.h"

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#include "strata/ops/quant/quantize_loops.h"
#include "strata/ops/quant/quantize_thresholds_avx2.h"

namespace strata::ops::quant::cpu {
namespace {

// The lowest byte of each of eight lanes.
STRATA_INLINE __m128i low_bytes(__m256i x) {
  const __m256i masked = _mm256_and_si256(x, _mm256_set1_epi32(0xFF));
  const __m128i words =
      _mm_packus_epi32(_mm256_castsi256_si128(masked), _mm256_extracti128_si256(masked, 1));
  return _mm_packus_epi16(words, words);
}

// Shuffles work in halves of 128 bits: quarters 1 and 2 change places.
STRATA_INLINE __m256 in_order(__m256 x) {
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), _MM_SHUFFLE(3, 1, 2, 0)));
}

// What the kinds of codes have in common.
struct Lanes256 {
  static constexpr int64_t kLanes = 8;
  using Floats = __m256;
  using Ints = __m256i;
  typedef uint16_t Words __attribute__((vector_size(16)));
  typedef uint32_t DoubleWords __attribute__((vector_size(32)));

  static STRATA_INLINE Floats broadcast(float x) { return _mm256_set1_ps(x); }
  static STRATA_INLINE Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }

  static STRATA_INLINE Floats widen(const HalfBits* x) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
  }

  // 16 elements: those at even places and those at odd ones.
  template <typename Stored>
  static STRATA_INLINE void load_pairs(const Stored* x, Floats& even, Floats& odd) {
    const Floats a = load<Lanes256>(x), b = load<Lanes256>(x + kLanes);
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

  static STRATA_INLINE uint32_t largest_of_pairs(Ints x) {
    const __m128i most = _mm_max_epu16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(most, _mm_set1_epi16(-1)));
    return ~static_cast<uint32_t>(_mm_cvtsi128_si32(least)) << 16;
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
};

// As with AVX-512, but a table holds eight borders: each half of them has its own, and the first
// step says from which to take.
class Halvings {
 public:
  explicit STRATA_INLINE Halvings(const Borders& table) {
    float borders[24] = {};
    int32_t codes[16];
    for (size_t i = 0; i < 15; ++i) borders[i] = table.borders[i];
    for (size_t i = 0; i < 16; ++i) codes[i] = table.by_value[i];
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
  STRATA_INLINE __m256i find(__m256 x) const {
    const __m256 upper = above(x, middle_);
    __m256i at = bit_where(above(x, _mm256_blendv_ps(quarter_[0], quarter_[1], upper)), 4);
    at = step(x, at, by_four_, upper, 2);
    at = step(x, at, by_two_, upper, 1);
    return _mm256_blendv_epi8(_mm256_permutevar8x32_epi32(codes_[0], at),
                              _mm256_permutevar8x32_epi32(codes_[1], at),
                              _mm256_castps_si256(upper));
  }

 private:
  static STRATA_INLINE __m256 above(__m256 x, __m256 borders) {
    return _mm256_cmp_ps(x, borders, _CMP_NLE_UQ);
  }
  static STRATA_INLINE __m256i bit_where(__m256 mask, int bit) {
    return _mm256_and_si256(_mm256_castps_si256(mask), _mm256_set1_epi32(bit));
  }
  static STRATA_INLINE __m256i step(__m256 x, __m256i at, const __m256* borders, __m256 upper,
                                    int bit) {
    const __m256 border = _mm256_blendv_ps(_mm256_permutevar8x32_ps(borders[0], at),
                                           _mm256_permutevar8x32_ps(borders[1], at), upper);
    return _mm256_or_si256(at, bit_where(above(x, border), bit));
  }
  __m256 middle_, quarter_[2], by_four_[2], by_two_[2];
  __m256i codes_[2];
};

// How a run of 32 elements becomes 16-bit numbers of steps and their bytes. Packing and shuffling
// work in halves of 128 bits, so the bytes come in an order of their own.
template <typename Stored>
struct Run {
  // Elements 0 to 3 and 8 to 11 of 16 in the lower half; the low bytes, then the high ones.
  static STRATA_INLINE __m256i split_steps(const Stored* x, __m256 factor) {
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(load<Lanes256>(x), factor));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(load<Lanes256>(x + 8), factor));
    return _mm256_shuffle_epi8(
        _mm256_packs_epi32(a, b),
        _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15,  //
                         0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  }
  static int element_at(int byte) { return (byte & 3) | (byte & 12) << 1 | (byte & 16) >> 2; }
  // Of what two bytes become one.
  static STRATA_INLINE __m128i in_order(__m128i x) {
    return _mm_shuffle_epi8(x, _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
  }
};
template <>
struct Run<BFloat16Bits> {
  // Elements 0 to 7 of 16 in the lower half.
  static STRATA_INLINE __m256i split_steps(const BFloat16Bits* x, __m256 factor) {
    __m256 even, odd;
    Lanes256::load_pairs(x, even, odd);
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(even, factor));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(odd, factor));
    return _mm256_shuffle_epi8(
        _mm256_packs_epi32(a, b),
        _mm256_setr_epi8(0, 8, 2, 10, 4, 12, 6, 14, 1, 9, 3, 11, 5, 13, 7, 15,  //
                         0, 8, 2, 10, 4, 12, 6, 14, 1, 9, 3, 11, 5, 13, 7, 15));
  }
  static int element_at(int byte) { return (byte & 7) | (byte & 8) << 1 | (byte & 16) >> 1; }
  static STRATA_INLINE __m128i in_order(__m128i x) {
    return _mm_shuffle_epi32(x, _MM_SHUFFLE(3, 1, 2, 0));
  }
};

// Half as many instructions: elements become 16-bit numbers of steps of 2^-15, whose upper five
// bits are a bucket with one border at most. A byte is looked up for 32 elements at once. An
// element on the same step as a border is in doubt (one of 3,000 or so; more where bf16 and FP4's
// fractions of small numbers meet) and compared itself; many of them are left to the halvings. FP4
// has a border at 0 as well (`kZeroIsBorder`), which lies on step 0, where a bucket begins.
template <bool kZeroIsBorder>
class Buckets {
 public:
  static constexpr int64_t kRun = 32;

  explicit STRATA_INLINE Buckets(const Borders& table) : table_(table), halvings_(table) {
    uint8_t high[32], low[32], below[32];
    size_t passed = 0;
    for (int bucket = -16; bucket < 16; ++bucket) {
      if (kZeroIsBorder && bucket == 0) ++passed;
      const int step = passed < 15 ? static_cast<int>(std::lrint(table.borders[passed] * kSteps))
                                   : INT16_MAX + 1;
      const bool is_here = step < (bucket + 1) * kStepsOfBucket;
      const auto at = static_cast<size_t>(bucket & 31);
      // Without a border: one that no element reaches, or one that all are beyond.
      const bool is_passed = !is_here && bucket >= 0;
      high[at] = static_cast<uint8_t>(is_here ? step >> 8 : is_passed ? INT8_MIN : INT8_MAX);
      low[at] = static_cast<uint8_t>(step & 0xFF);
      below[at] = static_cast<uint8_t>(is_passed ? passed - 1 : passed);
      if (is_here) ++passed;
    }
    for (int half = 0; half < 2; ++half) {
      high_[half] = table_of(high + 16 * half);
      low_[half] = table_of(low + 16 * half);
      below_[half] = table_of(below + 16 * half);
    }
    codes_ = table_of(table.by_value.data());
  }

  template <bool kIsOrdinary>
  STRATA_INLINE __m256i find(__m256 x) const {
    return halvings_.find(x);
  }

  // Whether it coded the run.
  template <typename Stored>
  STRATA_INLINE bool code_run(const Stored* x, float inverse, uint8_t* to) const {
    // Scaling by a power of two is exact: comparing steps decides as comparing elements does.
    const __m256 factor = _mm256_set1_ps(inverse * kSteps);
    const __m256i a = Run<Stored>::split_steps(x, factor);
    const __m256i b = Run<Stored>::split_steps(x + 16, factor);
    const __m256i low = _mm256_unpacklo_epi64(a, b), high = _mm256_unpackhi_epi64(a, b);
    // Shifted as words; a place in a table is four bits.
    const __m256i bucket = _mm256_and_si256(_mm256_srli_epi16(high, 3), _mm256_set1_epi8(15));

    const __m256i border_high = look_up(high_, bucket, high);
    const __m256i border_low = look_up(low_, bucket, high);
    const __m256i same_high = _mm256_cmpeq_epi8(high, border_high);
    __m256i doubt = _mm256_and_si256(same_high, _mm256_cmpeq_epi8(low, border_low));
    if (kZeroIsBorder) {
      const __m256i zero = _mm256_setzero_si256();
      doubt = _mm256_or_si256(doubt, _mm256_cmpeq_epi8(_mm256_or_si256(high, low), zero));
    }
    const auto doubted = static_cast<uint32_t>(_mm256_movemask_epi8(doubt));

    const __m256i reaches_low = _mm256_cmpeq_epi8(_mm256_max_epu8(low, border_low), low);
    const __m256i is_beyond = _mm256_or_si256(_mm256_cmpgt_epi8(high, border_high),
                                              _mm256_and_si256(same_high, reaches_low));
    const __m256i at = _mm256_sub_epi8(look_up(below_, bucket, high), is_beyond);
    // 16 times the first of two and the second.
    const __m256i pairs =
        _mm256_maddubs_epi16(_mm256_shuffle_epi8(codes_, at), _mm256_set1_epi16(0x0110));
    const __m128i packed =
        _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), Run<Stored>::in_order(packed));
    if (doubted != 0) [[unlikely]] {
      if (std::popcount(doubted) > kMostDoubted) return false;
      for (uint32_t rest = doubted; rest != 0; rest &= rest - 1) {
        code_one(std::countr_zero(rest), x, inverse, to);
      }
    }
    return true;
  }

 private:
  static constexpr float kSteps = 32768.0f;  // from 0 to 1
  static constexpr int kStepsOfBucket = 2048;
  static constexpr int kMostDoubted = 6;

  // The element of a byte of the run, by comparing with borders.
  template <typename Stored>
  STRATA_INLINE void code_one(int byte, const Stored* x, float inverse, uint8_t* to) const {
    const int i = Run<Stored>::element_at(byte);
    const uint8_t code = code_among(table_, to_float(x[i]) * inverse);
    uint8_t& pair = to[i / 2];
    pair = static_cast<uint8_t>(i % 2 == 0 ? (code << 4) | (pair & 15) : (pair & 0xF0) | code);
  }

  static STRATA_INLINE __m256i table_of(const uint8_t* bytes) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  }
  // `sign`: the highest bit of each byte chooses the table.
  static STRATA_INLINE __m256i look_up(const __m256i* tables, __m256i place, __m256i sign) {
    return _mm256_blendv_epi8(_mm256_shuffle_epi8(tables[0], place),
                              _mm256_shuffle_epi8(tables[1], place), sign);
  }

  const Borders& table_;
  Halvings halvings_;
  __m256i high_[2], low_[2], below_[2];  // by bucket: 0 to 15, -16 to -1
  __m256i codes_;
};

struct Nf4Lanes : Lanes256 {
  using Search = Buckets</*kZeroIsBorder=*/false>;
};
// Of bf16, fractions of small numbers meet FP4's borders too often for buckets.
class Fp4Search : public Buckets</*kZeroIsBorder=*/true> {
 public:
  explicit STRATA_INLINE Fp4Search(const Borders& table) : Buckets(table), thresholds_(table) {}
  STRATA_INLINE bool code_whole(const BFloat16Bits* x, int64_t n, float largest, float inverse,
                                uint8_t* to) const {
    return thresholds_.code_block(x, n, largest, inverse, to);
  }

 private:
  Thresholds thresholds_;
};
struct Fp4Lanes : Lanes256 {
  using Search = Fp4Search;
};

}  // namespace

void quantize_blocks_avx2(const Blocks& blocks) {
  if (blocks.kind == Kind::kFp4) return quantize_blocks_of_any_type<Fp4Lanes>(blocks);
  quantize_blocks_of_any_type<Nf4Lanes>(blocks);
}
void quantize_rows_avx2(const Rows& rows) { quantize_rows_of_any_type<Lanes256>(rows); }

}  // namespace strata::ops::quant::cpu

#pragma GCC pop_options
#endif  // STRATA_X86_KERNELS
