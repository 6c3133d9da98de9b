// Which vector instructions kernels that are written by hand may use on this processor; plain loops
// leave the choice to the compiler (base/vectorize.h). Owns: the question. Never: a kernel.
#pragma once

namespace strata::ops {

enum class InstructionSet {
  kBaseline,
  kAvx2,    // with FMA and F16C: x86-64-v3
  kAvx512,  // F, VL, BW, DQ: x86-64-v4
};

// Whether this build has kernels in intrinsics for the two above. (Clang cannot turn an instruction
// set on for a part of a file.)
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define STRATA_X86_KERNELS
inline constexpr bool kHasX86Kernels = true;
#else
inline constexpr bool kHasX86Kernels = false;
#endif

// The widest set that this processor has.
inline InstructionSet best_instruction_set() {
#if defined(__x86_64__) && defined(__GNUC__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")) {
    return InstructionSet::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return InstructionSet::kAvx2;
  }
#endif
  return InstructionSet::kBaseline;
}

}  // namespace strata::ops
