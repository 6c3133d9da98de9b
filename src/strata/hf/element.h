// One element of a tensor's bytes as fp32. Owns: reading at any address. Never: which element.
#pragma once

#include <cstddef>
#include <cstring>

#include "strata/base/float16.h"
#include "strata/hf/dtype.h"

namespace strata::hf {

// Requires: F32, BF16 or F16.
inline float element_at(const std::byte* at, DType dtype) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return dtype == DType::kBF16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

}  // namespace strata::hf
