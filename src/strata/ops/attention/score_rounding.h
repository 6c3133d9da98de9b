// Scores of attention as factors in bf16. Owns: the rounding of a row, and of two as pairs. Never:
// where rows lie.
#pragma once

#include <cstdint>

namespace strata::ops::cpu {

// Both: n and `columns` are multiples of kColumnMultiple; to nearest even.
//
// Columns [0, n) of the row, zeros up to `columns`. Returns the sum of what rounding added to them.
float round_row(const float* from, int64_t n, int64_t columns, uint16_t* to);
// The same of two rows, the first of which has no more columns, as pairs: the first in the low
// half.
void round_row_pair(const float* low, int64_t num_low, const float* high, int64_t num_high,
                    int64_t columns, uint32_t* to);

}  // namespace strata::ops::cpu
