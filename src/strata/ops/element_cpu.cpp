// Conversions between bf16 and fp32 on the CPU. Never: arithmetic in bf16.
#include "strata/ops/element.h"
#include "strata/ops/vectorize.h"

namespace strata::ops {

STRATA_VECTORIZED void widen(const uint16_t* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from_bf16(from[i]);
}

STRATA_VECTORIZED void narrow(const float* from, uint16_t* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = to_bf16(from[i]);
}

}  // namespace strata::ops
