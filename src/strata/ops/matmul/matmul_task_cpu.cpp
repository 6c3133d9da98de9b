// The pieces of matrix products on the CPU, as measurements chose them.
#include "strata/ops/matmul/matmul_task.h"

#include <unistd.h>

#include <algorithm>

#include "strata/ops/matmul/block_product.h"

namespace strata::ops::cpu {

namespace {

// Up to so many rows a is packed whole instead, in shorter ranges: 384 KiB in the second cache, and
// a panel of b of 32 KiB, which is read at once, in the first.
constexpr int64_t kFewRows = 4 * kBlockRows;
constexpr int64_t kInnerOfFewRows = 256;
// So many rows or columns of c are a thin product of the matrix unit, bound by what it reads.
constexpr int64_t kThin = 64;
constexpr int64_t kInnerOfThin = 32;
// Columns of b side by side where c has no more: the gradients and products of thin factors.
constexpr int64_t kNarrowTile = 16;
static_assert(kColumnMultiple <= kNarrowTile);
static_assert(kInner % kLanesOfTile == 0 && kInnerOfFewRows % kLanesOfTile == 0 &&
              kInnerOfThin % kLanesOfTile == 0);

// Whether b is read row after row as it is stored, few rows at a time: each panel of it is a line
// of the cache in as many rows as a range has, which come fast only while they are few. A sum is
// read and written once a range then.
bool streams_rows_of_b(const MatmulArguments& m, Bf16Products products) {
  return products == Bf16Products::kTiles && !m.b.transposed && m.c_type == Element::kFloat &&
         m.rows <= kThin && packs_rows_whole(m.rows, m.columns);
}

// Whether the first cache holds a line of each row of a tile although all of them stand in one set:
// rows a multiple of 4 KiB apart.
bool holds_rows_of_one_set() {
  static const bool holds = sysconf(_SC_LEVEL1_DCACHE_ASSOC) >= kTileRows;
  return holds;
}

// Tiles take rows as they lie in memory where their lanes lie there. Packing pays where they are
// read often.
bool reads_rows_in_place(const MatmulArguments& m, Bf16Products products) {
  constexpr int64_t kFewReads = 8;
  if (m.a.transposed || m.columns > kFewReads * kTileColumns ||
      packs_rows_whole(m.rows, m.columns)) {
    return false;
  }
  constexpr int64_t kBytesOfSets = 4096;
  if (products != Bf16Products::kTiles && m.a.stride * size_bytes(m.type) % kBytesOfSets == 0 &&
      !holds_rows_of_one_set()) {
    return false;
  }
  if (products == Bf16Products::kConverted) return m.type == Element::kFloat;
  const int64_t group = products == Bf16Products::kTiles ? 2 * kLanesOfTile : 2;
  return m.inner % group == 0 && m.a.stride % 2 == 0 &&
         reinterpret_cast<uintptr_t>(m.a.data) % sizeof(float) == 0;
}

}  // namespace

Bf16Products products_of(Element type) {
  return type == Element::kBFloat16 ? bf16_products() : Bf16Products::kConverted;
}

int64_t tile_rows_of(Bf16Products products) {
  return products == Bf16Products::kTiles ? kUnitRows : kTileRows;
}

int64_t lanes_of(int64_t inner, Bf16Products products) {
  if (products == Bf16Products::kConverted) return inner;
  const int64_t pairs = (inner + 1) / 2;
  return products == Bf16Products::kTiles ? round_up(pairs, kLanesOfTile) : pairs;
}

bool packs_rows_whole(int64_t rows, int64_t columns) {
  return rows <= kFewRows && rows <= 2 * columns;
}

int64_t range_of(int64_t rows, int64_t columns) {
  return packs_rows_whole(rows, columns) ? kInnerOfFewRows : kInner;
}

int64_t tile_columns_of(int64_t columns) {
  return columns <= kNarrowTile ? kNarrowTile : kTileColumns;
}

MatmulTask task_of(const MatmulArguments& m) {
  const Bf16Products products =
      m.b_codes == nullptr ? products_of(m.type) : Bf16Products::kConverted;
  const int64_t lanes = lanes_of(m.inner, products);
  return {.m = m,
          .products = products,
          .per_lane = products == Bf16Products::kConverted ? 1 : 2,
          .lanes = lanes,
          .range = streams_rows_of_b(m, products) ? kInnerOfThin : range_of(m.rows, m.columns),
          // Few lanes are bound by c: its rows are best written from one end to the other.
          .block_rows = lanes <= kThin ? tile_rows_of(products) : kBlockRows,
          .tile_rows = tile_rows_of(products),
          .tile_columns = tile_columns_of(m.columns),
          .rows_in_place = reads_rows_in_place(m, products),
          .streams_b = streams_rows_of_b(m, products)};
}

bool is_faster_transposed(const MatmulArguments& m) {
  return m.b_codes == nullptr && m.a.transposed && is_tall_and_thin(m.rows, m.columns, m.c_type);
}

bool is_tall_and_thin(int64_t rows, int64_t columns, Element c_type) {
  return c_type == Element::kFloat && columns <= kThin && rows > 2 * kThin &&
         !packs_rows_whole(rows, columns);
}

bool rounds_tiles(const MatmulTask& task) {
  return task.m.c_type == Element::kBFloat16 && task.lanes <= std::min(kThin, task.range);
}

}  // namespace strata::ops::cpu
