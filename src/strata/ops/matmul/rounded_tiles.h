// Tiles of a bf16 matrix that were summed in fp32. Owns: the conversion. Never: where tiles lie,
// products.
#pragma once

#include <cstdint>

namespace strata::ops::cpu {

struct TileSize {
  int64_t rows, columns;
};
// to = sums, or sums + to with `add`, to nearest even; NaN stays NaN. Strides in elements. With the
// processor's instruction for it numbers below the smallest normal one become zero.
void round_tile(TileSize size, const float* sums, int64_t sums_stride, uint16_t* to,
                int64_t to_stride, bool add);

}  // namespace strata::ops::cpu
