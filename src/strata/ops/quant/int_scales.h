// Scales and zeros of whole numbers in groups, as fp32. Owns: how one is read. Never: codes.
#pragma once

#include "strata/base/float16.h"
#include "strata/ops/quant/int_groups.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::quant::cpu {

// The scale of the `index`-th group of the matrix.
inline float scale_at(const IntGroups& of, int64_t index) {
  if (of.scale_type == Element::kFloat) return static_cast<const float*>(of.scales)[index];
  const uint16_t bits = static_cast<const uint16_t*>(of.scales)[index];
  return of.scale_type == Element::kHalf ? fp16_to_float(bits) : from_bf16(bits);
}

// What means zero, less the middle of all codes.
inline float zero_at(const IntGroups& of, int64_t index) {
  return of.zeros == nullptr ? 0.0f : static_cast<float>(of.zeros[index]);
}

}  // namespace strata::ops::quant::cpu
