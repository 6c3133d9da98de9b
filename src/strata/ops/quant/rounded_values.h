// Values of fp32 that are rounded to a narrower type where they lie. Owns: the declaration. Never:
// what they are for.
#pragma once

#include <cstdint>

#include "strata/ops/element.h"

namespace strata::ops::quant::cpu {

// To nearest, ties to even; NaN stays NaN, and what exceeds the type's range becomes infinite. fp32
// changes nothing.
void round_to(Element type, float* x, int64_t n);

}  // namespace strata::ops::quant::cpu
