// What a matrix product on the CPU multiplies, and in which pieces. Owns: the choices. Never:
// packing, products.
#pragma once

#include <cstdint>

#include "strata/ops/cpu_kernels.h"
#include "strata/ops/matmul/bf16_products.h"
#include "strata/ops/matmul/matmul_panels.h"

namespace strata::ops::cpu {

constexpr int64_t kBlockRows = kRowsOfOneBlock;  // rows of a packed at once: 192 KiB
constexpr int64_t kTileRowsAtMost = kTileRows > kUnitRows ? kTileRows : kUnitRows;
static_assert(kBlockRows % kTileRows == 0 && kBlockRows % kUnitRows == 0);
constexpr int64_t kBlockColumns = 1024;  // columns of b packed at once

// What is multiplied, and in which pieces.
struct MatmulTask {
  const MatmulArguments& m;
  Bf16Products products;
  int64_t per_lane;      // elements of the inner dimension a lane: 1, or 2 for pairs
  int64_t lanes;         // of the inner dimension
  int64_t range;         // of them that are packed side by side
  int64_t block_rows;    // of c that are multiplied by all columns before the next ones
  int64_t tile_rows;     // of a panel of a
  int64_t tile_columns;  // of a panel of b
  bool rows_in_place;    // whole tiles of rows are read where they lie
  bool streams_b;        // all panels of a range of lanes before the next range
  bool in_unit() const { return products == Bf16Products::kTiles; }
};

MatmulTask task_of(const MatmulArguments& m);

Bf16Products products_of(Element type);
int64_t tile_rows_of(Bf16Products products);
int64_t lanes_of(int64_t inner, Bf16Products products);
int64_t tile_columns_of(int64_t columns);
// Whether a is the factor that is packed whole.
bool packs_rows_whole(int64_t rows, int64_t columns);
// Lanes of the inner dimension that are packed side by side, at most.
int64_t range_of(int64_t rows, int64_t columns);
// Whether the gradient of a tall thin factor is computed as its transpose: the rows of a are read
// as they are stored then, in long pieces.
bool is_faster_transposed(const MatmulArguments& m);
bool is_tall_and_thin(int64_t rows, int64_t columns, Element c_type);

// Whether a bf16 c is rounded tile by tile, without scratch: where so few lanes are summed that to
// write and read the sums takes longer. Whole rows, as scratch holds them, are written faster.
bool rounds_tiles(const MatmulTask& task);

inline void* c_row(const MatmulArguments& m, int64_t row, int64_t column) {
  return at_index(m.c_type, m.c.data, row * m.c.stride + column);
}

}  // namespace strata::ops::cpu
