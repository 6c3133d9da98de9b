// The values that codes stand for. Owns: the tables of bitsandbytes, bit for bit, and of MXFP4.
// Never: blocks.
#pragma once

#include <array>
#include <cstdint>

#include "strata/ops/quant/format.h"

namespace strata::ops::quant {

// Value of each of the 16 codes of a 4-bit kind.
const std::array<float, 16>& codes_of(Kind kind);

// How 4-bit codes are chosen: code = by_value[number of `borders` below the scaled element]. An
// element on a border belongs to the lower value.
struct Borders {
  std::array<float, 15> borders;  // ascending
  std::array<uint8_t, 16> by_value;
};
const Borders& borders_of(Kind kind);

// The 8-bit dynamic map (Dettmers 2016), ascending: 7 bits of exponent shared with the fraction.
// Signed for scales and first moments, unsigned for second moments.
const std::array<float, 256>& dynamic_map(bool is_signed);

}  // namespace strata::ops::quant
