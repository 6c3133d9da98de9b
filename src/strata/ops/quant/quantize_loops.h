// The loops of quantising, written once for every instruction set. `Isa` is a type with the
// vectors of one: kLanes, Floats, Ints and the functions that are called here. Owns: the order of
// the steps, which is bitsandbytes'. Never: an instruction.
//
// Requires: included where the options of that instruction set are on, after all other headers.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "strata/base/float16.h"
#include "strata/ops/quant/quantize_kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::quant::cpu {

// kLanes elements as fp32.
template <typename Isa>
STRATA_INLINE typename Isa::Floats load(const float* x) {
  typename Isa::Floats values;
  std::memcpy(&values, x, sizeof values);
  return values;
}
template <typename Isa>
STRATA_INLINE typename Isa::Floats load(const BFloat16Bits* x) {
  if constexpr (Isa::kLanes == 1) {
    return to_float(*x);
  } else {
    typename Isa::Words words;
    std::memcpy(&words, x, sizeof words);
    return (typename Isa::Floats)(__builtin_convertvector(words, typename Isa::DoubleWords) << 16);
  }
}
template <typename Isa>
STRATA_INLINE typename Isa::Floats load(const HalfBits* x) {
  return Isa::widen(x);
}

// n < kLanes elements and zeros.
template <typename Isa, typename Stored>
STRATA_INLINE typename Isa::Floats load_some(const Stored* x, int64_t n) {
  Stored some[Isa::kLanes] = {};
  std::memcpy(some, x, static_cast<size_t>(n) * sizeof(Stored));
  return load<Isa>(some);
}

// The largest magnitude of n elements, NaN if one is NaN. Magnitudes are ordered like their bits,
// with NaN above infinity.
template <typename Isa, typename Stored>
STRATA_INLINE float largest_magnitude(const Stored* x, int64_t n) {
  typename Isa::Ints most = Isa::magnitude(Isa::broadcast(0.0f));
  int64_t i = 0;
  if constexpr (requires { Isa::add_pairs(x, most); }) {
    // Twice as many to a register.
    typename Isa::Ints pairs = most;
    for (; i + 2 * Isa::kLanes <= n; i += 2 * Isa::kLanes) pairs = Isa::add_pairs(x + i, pairs);
    if (i == n) return bits_float(Isa::largest_of_pairs(pairs));
    most = Isa::split_pairs(pairs);
  }
  for (; i + Isa::kLanes <= n; i += Isa::kLanes) {
    most = Isa::larger(most, Isa::magnitude(load<Isa>(x + i)));
  }
  if (Isa::kLanes > 1 && i < n)
    most = Isa::larger(most, Isa::magnitude(load_some<Isa>(x + i, n - i)));
  return bits_float(Isa::largest(most));
}

// Every element by the search for one; see code_block.
template <typename Isa, bool kIsOrdinary, typename Stored>
STRATA_INLINE void code_each(const typename Isa::Search& search, const Stored* x, int64_t n,
                             float inverse, uint8_t* codes) {
  const typename Isa::Floats factor = Isa::broadcast(inverse);
  for (int64_t i = 0; i < n; i += 2 * Isa::kLanes) {
    typename Isa::Floats even, odd;
    Isa::load_pairs(x + i, even, odd);
    Isa::store_nibbles(search.template find<kIsOrdinary>(Isa::multiply(even, factor)),
                       search.template find<kIsOrdinary>(Isa::multiply(odd, factor)),
                       codes + i / 2);
  }
}

// `kIsOrdinary`: the scale is finite, and with it every element, and far from the smallest; the
// search for codes may count on it. One that can code a block or a run of elements at once says
// whether it is sure of all of them. `largest`: the scale.
template <typename Isa, bool kIsOrdinary, typename Stored>
STRATA_INLINE void code_block(const typename Isa::Search& search, const Stored* x, int64_t n,
                              float largest, float inverse, uint8_t* codes) {
  using Search = typename Isa::Search;
  if constexpr (kIsOrdinary && requires { search.code_whole(x, n, largest, inverse, codes); }) {
    if (search.code_whole(x, n, largest, inverse, codes)) [[likely]]
      return;
  }
  if constexpr (kIsOrdinary && requires { Search::kRun; }) {
    for (int64_t i = 0; i < n; i += Search::kRun) {
      if (search.code_run(x + i, inverse, codes + i / 2)) [[likely]]
        continue;
      code_each<Isa, kIsOrdinary>(search, x + i, Search::kRun, inverse, codes + i / 2);
    }
  } else {
    code_each<Isa, kIsOrdinary>(search, x, n, inverse, codes);
  }
}

// Memory delivers while codes are computed: what the processor prefetches by itself ends with each
// page, and computing leaves it idle. Past the end of memory it does nothing.
template <typename Stored>
STRATA_INLINE void prefetch(const Stored* x, int64_t n) {
  constexpr int64_t kLine = 64 / sizeof(Stored);
  for (int64_t i = 0; i < n; i += kLine) __builtin_prefetch(x + i);
}

// Scaled by the reciprocal, as the reference does for whole blocks. The scales of some blocks come
// first: a code waits for the end of a long chain otherwise, and few of them are under way at once.
// `kBlock`: elements of a block where they are known to the compiler, else 0.
template <typename Isa, int64_t kBlock, typename Stored>
STRATA_INLINE void quantize_blocks(const Blocks& b) {
  constexpr int64_t kElementsAtOnce = 512;  // they stay in the first cache
  constexpr int64_t kElementsAhead = 2048;
  const typename Isa::Search search(borders_of(b.kind));
  const int64_t block = kBlock == 0 ? b.block : kBlock;
  const int64_t at_once = std::max<int64_t>(1, kElementsAtOnce / block);
  const auto* x = static_cast<const Stored*>(b.x);
  for (int64_t begin = 0; begin < b.count; begin += at_once) {
    const int64_t end = std::min(begin + at_once, b.count);
    prefetch(x + begin * block + kElementsAhead, at_once * block);
    for (int64_t k = begin; k < end; ++k) {
      b.scales[k] = largest_magnitude<Isa>(x + k * block, block);
    }
    for (int64_t k = begin; k < end; ++k) {
      const float largest = b.scales[k], inverse = 1.0f / divisor_of(largest);
      uint8_t* codes = b.codes + k * block / 2;
      if (largest >= kSmallestOrdinary && largest <= std::numeric_limits<float>::max()) {
        code_block<Isa, /*kIsOrdinary=*/true>(search, x + k * block, block, largest, inverse,
                                              codes);
      } else {
        code_block<Isa, /*kIsOrdinary=*/false>(search, x + k * block, block, largest, inverse,
                                               codes);
      }
    }
  }
}

template <typename Isa, bool kRounds>
STRATA_INLINE typename Isa::Floats rounded(typename Isa::Floats values) {
  if constexpr (kRounds) return Isa::halved(values);
  return values;
}

// The reference rounds to fp16 first, and multiplies by 127 after taking the reciprocal. What is
// not finite becomes 0.
//
// Of bf16 the rounding is left out where it changes no code: fp16 holds its values from 2^-14 to
// 65504 as they are, and what is smaller has code 0 beside a scale from 2^-5 on.
template <typename Isa, bool kRounds, typename Stored>
STRATA_INLINE void code_row(const Stored* x, int64_t n, float inverse, int8_t* codes) {
  const typename Isa::Floats factor = Isa::broadcast(inverse * 127.0f);
  int64_t i = 0;
  for (; i + Isa::kLanes <= n; i += Isa::kLanes) {
    __builtin_prefetch(x + n + i);  // the next row
    Isa::store_bytes(Isa::multiply(rounded<Isa, kRounds>(load<Isa>(x + i)), factor), codes + i);
  }
  if (Isa::kLanes == 1 || i >= n) return;
  int8_t rest[Isa::kLanes];
  Isa::store_bytes(Isa::multiply(rounded<Isa, kRounds>(load_some<Isa>(x + i, n - i)), factor),
                   rest);
  std::memcpy(codes + i, rest, static_cast<size_t>(n - i));
}

template <typename Isa, typename Stored>
STRATA_INLINE void quantize_row(const Stored* x, int64_t n, int8_t* codes, float* scale) {
  // Rounding keeps the order: the largest of the rounded is the largest, rounded.
  const float largest = fp16_to_float(float_to_fp16(largest_magnitude<Isa>(x, n)));
  *scale = largest;
  const float inverse = 1.0f / largest;
  if constexpr (std::is_same_v<Stored, BFloat16Bits>) {
    if (largest >= 0x1p-5f && largest <= 65504.0f) {
      return code_row<Isa, /*kRounds=*/false>(x, n, inverse, codes);
    }
  }
  code_row<Isa, /*kRounds=*/true>(x, n, inverse, codes);
}

template <typename Isa, typename Stored>
STRATA_INLINE void quantize_rows(const Rows& r) {
  const auto* x = static_cast<const Stored*>(r.x);
  for (int64_t row = 0; row < r.rows; ++row) {
    quantize_row<Isa>(x + row * r.columns, r.columns, r.codes + row * r.columns, r.scales + row);
  }
}

template <typename Isa, typename Stored>
STRATA_INLINE void quantize_blocks_of_any_size(const Blocks& b) {
  constexpr int64_t kUsual = 64;
  if (b.block == kUsual) return quantize_blocks<Isa, kUsual, Stored>(b);
  quantize_blocks<Isa, 0, Stored>(b);
}

template <typename Isa>
STRATA_INLINE void quantize_blocks_of_any_type(const Blocks& b) {
  switch (b.type) {
    case Element::kFloat:
      return quantize_blocks_of_any_size<Isa, float>(b);
    case Element::kBFloat16:
      return quantize_blocks_of_any_size<Isa, BFloat16Bits>(b);
    case Element::kHalf:
      return quantize_blocks_of_any_size<Isa, HalfBits>(b);
  }
}

template <typename Isa>
STRATA_INLINE void quantize_rows_of_any_type(const Rows& r) {
  switch (r.type) {
    case Element::kFloat:
      return quantize_rows<Isa, float>(r);
    case Element::kBFloat16:
      return quantize_rows<Isa, BFloat16Bits>(r);
    case Element::kHalf:
      return quantize_rows<Isa, HalfBits>(r);
  }
}

}  // namespace strata::ops::quant::cpu
