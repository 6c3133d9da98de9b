// The loops of quantising, written once for every instruction set. `Isa` is a type with the
// vectors of one: kLanes, Floats, Ints and the functions that are called here. Owns: the order of
// the steps, which is bitsandbytes'. Never: an instruction.
//
// Requires: included where the options of that instruction set are on, after all other headers.
#pragma once

#include <cstring>
#include <limits>

#include "strata/base/float16.h"
#include "strata/ops/quant/quantize_kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::quant::cpu {

// n < kLanes elements and zeros.
template <typename Isa, typename Stored>
STRATA_INLINE typename Isa::Floats load_some(const Stored* x, int64_t n) {
  Stored some[Isa::kLanes] = {};
  std::memcpy(some, x, static_cast<size_t>(n) * sizeof(Stored));
  return Isa::load(some);
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
    most = Isa::split_pairs(pairs);
  }
  for (; i + Isa::kLanes <= n; i += Isa::kLanes) {
    most = Isa::larger(most, Isa::magnitude(Isa::load(x + i)));
  }
  if (Isa::kLanes > 1 && i < n)
    most = Isa::larger(most, Isa::magnitude(load_some<Isa>(x + i, n - i)));
  return bits_float(Isa::largest(most));
}

// `kIsFinite`: the scale and with it every element is; the search for codes may count on it.
template <typename Isa, bool kIsFinite, typename Stored>
STRATA_INLINE void code_block(const typename Isa::Search& search, const Stored* x, int64_t n,
                              float scale, uint8_t* codes) {
  const typename Isa::Floats inverse = Isa::broadcast(scale);
  for (int64_t i = 0; i < n; i += 2 * Isa::kLanes) {
    typename Isa::Floats even, odd;
    Isa::load_pairs(x + i, even, odd);
    Isa::store_nibbles(search.template find<kIsFinite>(Isa::multiply(even, inverse)),
                       search.template find<kIsFinite>(Isa::multiply(odd, inverse)), codes + i / 2);
  }
}

// Scaled by the reciprocal, as the reference does for whole blocks.
template <typename Isa, typename Stored>
STRATA_INLINE void quantize_blocks(const Blocks& b) {
  const typename Isa::Search search(borders_of(b.kind));
  const auto* x = static_cast<const Stored*>(b.x);
  uint8_t* codes = b.codes;
  for (int64_t k = 0; k < b.count; ++k, x += b.block, codes += b.block / 2) {
    const float largest = largest_magnitude<Isa>(x, b.block);
    b.scales[k] = largest;
    const float inverse = 1.0f / divisor_of(largest);
    if (largest <= std::numeric_limits<float>::max()) {
      code_block<Isa, /*kIsFinite=*/true>(search, x, b.block, inverse, codes);
    } else {
      code_block<Isa, /*kIsFinite=*/false>(search, x, b.block, inverse, codes);
    }
  }
}

// The reference rounds to fp16 first, and multiplies by 127 after taking the reciprocal. What is
// not finite becomes 0.
template <typename Isa, typename Stored>
STRATA_INLINE void quantize_row(const Stored* x, int64_t n, int8_t* codes, float* scale) {
  // Rounding keeps the order: the largest of the rounded is the largest, rounded.
  const float largest = fp16_to_float(float_to_fp16(largest_magnitude<Isa>(x, n)));
  *scale = largest;
  const float inverse = 1.0f / largest;
  const typename Isa::Floats factor = Isa::broadcast(inverse * 127.0f);
  int64_t i = 0;
  for (; i + Isa::kLanes <= n; i += Isa::kLanes) {
    Isa::store_bytes(Isa::multiply(Isa::halved(Isa::load(x + i)), factor), codes + i);
  }
  if (Isa::kLanes == 1 || i >= n) return;
  int8_t rest[Isa::kLanes];
  Isa::store_bytes(Isa::multiply(Isa::halved(load_some<Isa>(x + i, n - i)), factor), rest);
  std::memcpy(codes + i, rest, static_cast<size_t>(n - i));
}

template <typename Isa, typename Stored>
STRATA_INLINE void quantize_rows(const Rows& r) {
  const auto* x = static_cast<const Stored*>(r.x);
  for (int64_t row = 0; row < r.rows; ++row) {
    quantize_row<Isa>(x + row * r.columns, r.columns, r.codes + row * r.columns, r.scales + row);
  }
}

template <typename Isa>
STRATA_INLINE void quantize_blocks_of_any_type(const Blocks& b) {
  switch (b.type) {
    case Element::kFloat:
      return quantize_blocks<Isa, float>(b);
    case Element::kBFloat16:
      return quantize_blocks<Isa, BFloat16Bits>(b);
    case Element::kHalf:
      return quantize_blocks<Isa, HalfBits>(b);
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
