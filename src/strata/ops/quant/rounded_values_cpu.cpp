// The loops. Never: which type is whose.
#include "strata/ops/quant/rounded_values.h"

#include "strata/ops/instruction_set.h"
#include "strata/ops/vectorize.h"

#ifdef STRATA_X86_KERNELS
#include <immintrin.h>
#endif

namespace strata::ops::quant::cpu {
namespace {

STRATA_VECTORIZED void round_to_bf16(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = from_bf16(to_bf16(x[i]));
}

// Rounded as float_to_fp16() does and back, without branches: below 2^-14 the unit is that of 0.5,
// and from 65520 on it is infinity.
STRATA_INLINE float through_fp16(float x) {
  const uint32_t bits = float_bits(x), magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u)) & ~0x1fffu;
  const uint32_t small = float_bits((bits_float(magnitude) + 0.5f) - 0.5f);
  const uint32_t unbounded = magnitude < 0x38800000u ? small : normal;
  const uint32_t bounded = unbounded >= 0x47800000u ? 0x7f800000u : unbounded;
  const uint32_t rounded = magnitude > 0x7f800000u ? 0x7fc00000u : bounded;
  return bits_float(rounded | (bits & 0x80000000u));
}

#ifdef STRATA_X86_KERNELS
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
// Returns how many of x are done.
int64_t round_to_fp16_by_conversion(float* x, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_ps(x + i, _mm256_cvtph_ps(halves));
  }
  return i;
}
#pragma GCC pop_options
#endif

STRATA_VECTORIZED void round_to_fp16(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = through_fp16(x[i]);
}

}  // namespace

void round_to(Element type, float* x, int64_t n) {
  if (type == Element::kBFloat16) round_to_bf16(x, n);
  if (type != Element::kHalf) return;
  int64_t done = 0;
#ifdef STRATA_X86_KERNELS
  static const bool converts = best_instruction_set() != InstructionSet::kBaseline;
  if (converts) done = round_to_fp16_by_conversion(x, n);
#endif
  round_to_fp16(x + done, n - done);
}

}  // namespace strata::ops::quant::cpu
