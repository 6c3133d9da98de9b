// What quantising hands to the kernels of one instruction set. Owns: those structures. Never: a
// loop; which set is used (quantize_cpu.cpp).
#pragma once

#include <cstdint>

#include "strata/base/float16.h"
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
inline float to_float(float x) { return x; }
inline float to_float(BFloat16Bits x) { return bf16_to_float(x.bits); }
inline float to_float(HalfBits x) { return fp16_to_float(x.bits); }

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
// The code of a scaled element. NaN is above all borders.
inline uint8_t code_among(const Borders& table, float x) {
  size_t at = 0;
  for (const size_t step : {8u, 4u, 2u, 1u}) at += x <= table.borders[at + step - 1] ? 0 : step;
  return table.by_value[at];
}

// From here on 1 / scale has room for a factor of 2^15.
inline constexpr float kSmallestOrdinary = 1e-30f;

// Requires: best_instruction_set() is at least theirs.
void quantize_blocks_avx512(const Blocks& blocks);
void quantize_blocks_avx2(const Blocks& blocks);
void quantize_rows_avx512(const Rows& rows);
void quantize_rows_avx2(const Rows& rows);

}  // namespace strata::ops::quant::cpu
