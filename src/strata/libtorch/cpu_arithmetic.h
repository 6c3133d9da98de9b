// What the processor computes natively. Never: the choice of a type; callers choose.
#pragma once

namespace strata {

// Without it bf16 products are emulated, several times slower than fp32 ones.
inline bool cpu_has_bf16_arithmetic() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

inline bool is_intel_cpu() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

}  // namespace strata
