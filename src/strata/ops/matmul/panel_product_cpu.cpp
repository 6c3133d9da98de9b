// The product of a panel, tile by tile.
#include "strata/ops/matmul/panel_product.h"

#include <algorithm>
#include <cstring>

#include "strata/ops/matmul/block_product.h"

namespace strata::ops::cpu {

namespace {

void multiply(const BlockProduct& product, Bf16Products products) {
  switch (products) {
    case Bf16Products::kConverted:
      return block_product(product);
    case Bf16Products::kPairs:
      return pair_product(product);
    case Bf16Products::kTiles:
      return tile_product(product);
  }
}

// Adds the elements of a tile. Where c has no room for what is computed beside them they go through
// a tile on the stack, in which every element is the same sum in the same order.
void multiply_partial_tile(const BlockProduct& whole, Bf16Products products, int64_t rows,
                           int64_t columns) {
  float tile[kTileRowsAtMost * kTileColumns];
  std::fill_n(tile, whole.rows * kTileColumns, 0.0f);
  const auto bytes = static_cast<size_t>(columns) * sizeof(float);
  for (int64_t r = 0; r < rows && whole.add; ++r) {
    std::memcpy(tile + r * kTileColumns, whole.c + r * whole.c_stride, bytes);
  }
  BlockProduct partial = whole;
  partial.c = tile;
  partial.c_stride = kTileColumns;
  multiply(partial, products);
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(whole.c + r * whole.c_stride, tile + r * kTileColumns, bytes);
  }
}

// Where a product finds `rows` rows from row i of the block on.
void set_rows(const MatmulTask& task, const RowBlock& block, const ColumnPanel& panel, int64_t i,
              int64_t rows, BlockProduct& product) {
  if (task.rows_in_place && rows == task.tile_rows) {
    const int64_t stride = task.m.a.stride;
    const int64_t index = (block.begin + i) * stride + panel.lane * task.per_lane;
    product.a = static_cast<const float*>(at_index(task.m.type, task.m.a.data, index));
    product.a_row_stride = stride / task.per_lane;
    product.a_inner_stride = task.in_unit() ? kLanesOfTile : 1;
    return;
  }
  product.a = block.packed_rows + i * panel.lanes;
  product.a_row_stride = task.in_unit() ? kLanesOfTile : 1;
  product.a_inner_stride = task.in_unit() ? task.tile_rows * kLanesOfTile : task.tile_rows;
}

float* sums_at(const RowBlock& block, int64_t row, int64_t column) {
  return block.sums + row * block.sums_stride + column;
}

}  // namespace

void RoundedTiles::add(TileSize size, void* c) {
  round_last();
  size_ = size;
  c_ = static_cast<uint16_t*>(c);
  next_ = 1 - next_;
  // A line of the cache in each row, of which no hardware makes a pattern.
  for (int64_t r = 0; r < size.rows; ++r) __builtin_prefetch(c_ + r * m_.c.stride, /*rw=*/1);
}

void RoundedTiles::round_last() {
  if (c_ == nullptr) return;
  round_tile(size_, tiles_[1 - next_], kTileColumns, c_, m_.c.stride, m_.add);
  c_ = nullptr;
}

void multiply_panel(const MatmulTask& task, const RowBlock& block, const ColumnPanel& panel,
                    RoundedTiles& rounded, const Panel* next) {
  const bool is_rounded = task.m.c_type == Element::kBFloat16;
  const int64_t tiles = (block.count + task.tile_rows - 1) / task.tile_rows;
  const bool is_in_room = block.sums == nullptr;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (next != nullptr) prefetch(*next, tile, tiles);
    const int64_t i = tile * task.tile_rows;
    const int64_t rows = std::min(task.tile_rows, block.count - i);
    // Filled and read field by field: a copy at once would wait for the whole previous tile, after
    // whose stores its own come.
    BlockProduct product{.rows = task.in_unit() ? round_up(rows, kRowsOfTile) : rows,
                         .columns = padded_columns(panel.width),
                         .inner = panel.lanes,
                         .a = nullptr,
                         .a_row_stride = 0,
                         .a_inner_stride = 0,
                         .b = panel.data,
                         .b_stride = task.tile_columns,
                         .c = is_in_room ? rounded.room() : sums_at(block, i, panel.begin),
                         .c_stride = is_in_room ? kTileColumns : block.sums_stride,
                         .add = (task.m.add && !is_rounded) || panel.lane > 0};
    set_rows(task, block, panel, i, rows, product);
    if (product.rows == rows && product.columns == panel.width) {
      multiply(product, task.products);
    } else {
      multiply_partial_tile(product, task.products, rows, panel.width);
    }
    if (is_in_room) {
      rounded.add({rows, panel.width},
                  c_row(task.m, block.begin + i, block.first_column + panel.begin));
    }
  }
}

void round_sums(const MatmulTask& task, const RowBlock& block, int64_t columns) {
  if (task.m.c_type != Element::kBFloat16 || block.sums == nullptr) return;
  auto* c = static_cast<uint16_t*>(c_row(task.m, block.begin, block.first_column));
  round_tile({block.count, columns}, block.sums, block.sums_stride, c, task.m.c.stride, task.m.add);
}

}  // namespace strata::ops::cpu
