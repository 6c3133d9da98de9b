// Values of 4-bit codes by a table of sixteen. Owns: the declaration. Never: blocks, scales'
// places.
#pragma once

#include <cstdint>

#include "strata/ops/element.h"
#include "strata/ops/instruction_set.h"

namespace strata::ops::quant::cpu {

// The value of a code, a number from 0 to 15, is table[code] * scale, rounded to `through`.
struct CodeValues {
  const float* table;
  float scale;
  Element through = Element::kFloat;  // or bf16
  bool low_half_first = false;
};

// x[2 i] and x[2 i + 1] = the values of the high and the low half of codes[i], or the other way
// round, for i below `pairs`.
// `set`: at most best_instruction_set(); the bits do not depend on it.
void decode_pairs(const CodeValues& values, const uint8_t* codes, int64_t pairs, float* x,
                  InstructionSet set = best_instruction_set());

}  // namespace strata::ops::quant::cpu
