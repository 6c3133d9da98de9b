// Conversions between bf16 and fp32 on the CPU. Never: arithmetic in bf16.
#include "strata/ops/element.h"
#include "strata/ops/vectorize.h"

namespace strata::ops {

STRATA_VECTORIZED void widen(const uint16_t* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = bits_float(static_cast<uint32_t>(from[i]) << 16);
}

STRATA_VECTORIZED void narrow(const float* from, uint16_t* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = float_bits(from[i]);
    const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    to[i] = static_cast<uint16_t>(is_nan ? 0x7FC0u : rounded);
  }
}

}  // namespace strata::ops
