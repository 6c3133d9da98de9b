// Whole numbers in groups as the kernels of every device take them. Owns: where their parts lie.
// Never: a kernel, memory, headers of libtorch or CUDA.
#pragma once

#include <cstdint>

#include "strata/ops/element.h"
#include "strata/ops/quant/format.h"

namespace strata::ops::quant {

// A value is ((code - middle) - zero) * scale, rounded to the type of the scales.
struct IntGroups {
  int bits = 0;  // 4 or 8; 0: codes of another kind
  Element scale_type = Element::kFloat;
  const void* scales = nullptr;    // [rows, groups]
  const int8_t* zeros = nullptr;   // [rows, groups]; null: all are 0
  const int32_t* order = nullptr;  // [columns], of each its group; null: one after the other
  int64_t group = 1;               // columns
  int64_t groups = 0;              // of a row
  int64_t row_bytes = 0;           // of codes
};

// None but of Kind::kInts. `bytes`: of a matrix [rows, columns], on any device.
IntGroups int_groups_of(const Format& format, int64_t rows, int64_t columns, const uint8_t* bytes);

}  // namespace strata::ops::quant
