// What quantising hands to the kernels of one instruction set. Owns: those structures. Never: a
// loop; which set is used (quantize_cpu.cpp).
#pragma once

#include <cstdint>

#include "strata/ops/element.h"
#include "strata/ops/instruction_set.h"
#include "strata/ops/quant/codebook.h"

namespace strata::ops::quant::cpu {

// Two bytes of the storage types without arithmetic of their own.
struct BFloat16Bits {
  uint16_t bits;
};
struct HalfBits {
  uint16_t bits;
};

// Whole blocks of 4-bit codes; `block` is a multiple of 32.
struct Blocks {
  Kind kind;
  Element type;
  const void* x;
  int64_t block, count;
  uint8_t* codes;  // two elements a byte, the first in the high half
  float* scales;   // [count]
};

// Rows of signed bytes, through fp16.
struct Rows {
  Element type;
  const void* x;
  int64_t rows, columns;
  int8_t* codes;
  float* scales;  // [rows]
};

// Below this the scale of a 4-bit block counts as this: 1 / scale stays finite. NaN stays NaN.
inline constexpr float kSmallestScale = 1e-38f;
inline float divisor_of(float scale) { return scale < kSmallestScale ? kSmallestScale : scale; }

// Requires: best_instruction_set() is at least theirs.
void quantize_blocks_avx512(const Blocks& blocks);
void quantize_blocks_avx2(const Blocks& blocks);
void quantize_rows_avx512(const Rows& rows);
void quantize_rows_avx2(const Rows& rows);

}  // namespace strata::ops::quant::cpu
