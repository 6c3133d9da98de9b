// How plain loops use wide registers while the program runs on any processor of its family: they
// are compiled once per instruction-set level, and the best one is chosen when the program loads.
// Owns: those two macros. Never: a loop.
#pragma once

#include "strata/base/sanitized.h"

// On a function with simple loops: compiles it for AVX-512, AVX2 and the baseline. Not on templates
// (the compiler ignores it there). Sanitizers start after the choice is made, so they go without.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !STRATA_SANITIZED
#define STRATA_VECTORIZED \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define STRATA_VECTORIZED
#endif
// On what such a function calls in its loops.
#define STRATA_INLINE inline __attribute__((always_inline))
