// Large products on the CPU in the manner of BLIS (Van Zee and van de Geijn 2015): both factors are
// copied into panels (matmul_panels.h) that the register tiles read from one end to the other,
// sized so that a tile's panel of a stays in the first cache, and a panel of b and a block of a in
// the second. Never: checks.
//
// Many rows share one packed copy of b. Few rows are too little work to pay for it: b would be
// read, written and read again for each of its elements' 2 * rows operations. There a is packed
// whole, and every panel of b just before all rows read it from the first cache. Either way an
// element of c is the same sum in the same order.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#include "strata/ops/cpu_kernels.h"
#include "strata/ops/line_buffer.h"
#include "strata/ops/matmul/bf16_products.h"
#include "strata/ops/matmul/block_product.h"
#include "strata/ops/matmul/matmul_panels.h"
#include "strata/ops/matmul/rounded_tiles.h"

namespace strata::ops::cpu {

namespace {

constexpr int64_t kBlockRows = kRowsOfOneBlock;  // rows of a packed at once: 192 KiB
constexpr int64_t kTileRowsAtMost = std::max(kTileRows, kUnitRows);
static_assert(kBlockRows % kTileRows == 0 && kBlockRows % kUnitRows == 0);
constexpr int64_t kBlockColumns = 1024;  // columns of b packed at once
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

// What is multiplied, and in which pieces.
struct Task {
  const MatmulArguments& m;
  Bf16Products products;
  int64_t per_lane;      // elements of the inner dimension a lane: 1, or 2 for pairs
  int64_t lanes;         // of the inner dimension
  int64_t range;         // of them that are packed side by side
  int64_t tile_rows;     // of a panel of a
  int64_t tile_columns;  // of a panel of b
  bool rows_in_place;    // whole tiles of rows are read where they lie
  bool streams_b;        // all panels of a range of lanes before the next range
  bool in_unit() const { return products == Bf16Products::kTiles; }
};

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

// Whether a is the factor that is packed whole.
bool packs_rows_whole(int64_t rows, int64_t columns) {
  return rows <= kFewRows && rows <= 2 * columns;
}

int64_t range_of(int64_t rows, int64_t columns) {
  return packs_rows_whole(rows, columns) ? kInnerOfFewRows : kInner;
}

// Whether b is read row after row as it is stored, few rows at a time: each panel of it is a line
// of the cache in as many rows as a range has, which come fast only while they are few. A sum is
// read and written once a range then.
bool streams_rows_of_b(const MatmulArguments& m, Bf16Products products) {
  return products == Bf16Products::kTiles && !m.b.transposed && m.c_type == Element::kFloat &&
         m.rows <= kThin && packs_rows_whole(m.rows, m.columns);
}

int64_t tile_columns_of(int64_t columns) {
  return columns <= kNarrowTile ? kNarrowTile : kTileColumns;
}

// The matrix unit takes rows of pairs as they lie in memory. Packing pays where they are read
// often.
bool reads_rows_in_place(const MatmulArguments& m, Bf16Products products) {
  constexpr int64_t kFewReads = 8, kGroup = 2 * kLanesOfTile;
  return products == Bf16Products::kTiles && !m.a.transposed && m.inner % kGroup == 0 &&
         m.a.stride % 2 == 0 && reinterpret_cast<uintptr_t>(m.a.data) % sizeof(float) == 0 &&
         m.columns <= kFewReads * kTileColumns && !packs_rows_whole(m.rows, m.columns);
}

Task task_of(const MatmulArguments& m) {
  const Bf16Products products =
      m.b_codes == nullptr ? products_of(m.type) : Bf16Products::kConverted;
  return {.m = m,
          .products = products,
          .per_lane = products == Bf16Products::kConverted ? 1 : 2,
          .lanes = lanes_of(m.inner, products),
          .range = streams_rows_of_b(m, products) ? kInnerOfThin : range_of(m.rows, m.columns),
          .tile_rows = tile_rows_of(products),
          .tile_columns = tile_columns_of(m.columns),
          .rows_in_place = reads_rows_in_place(m, products),
          .streams_b = streams_rows_of_b(m, products)};
}

// Lines [begin, begin + width) of a factor over lanes [lane, lane + count).
struct PanelPlace {
  int64_t begin, width, panel_width;
  int64_t lane, count;
};

Panel panel_of(const Task& task, const MatmulFactor& factor, bool contiguous_lines,
               const PanelPlace& place, const quant::cpu::MatrixCodes* codes = nullptr) {
  const int64_t k = place.lane * task.per_lane;
  const int64_t index =
      contiguous_lines ? place.begin * factor.stride + k : k * factor.stride + place.begin;
  return {.type = task.m.type,
          .first = codes == nullptr ? at_index(task.m.type, factor.data, index) : nullptr,
          .stride = factor.stride,
          .contiguous_lines = contiguous_lines,
          .width = place.width,
          .inner = std::min(place.count * task.per_lane, task.m.inner - k),
          .panel_width = place.panel_width,
          .lanes = place.count,
          .of_pairs = task.per_lane == 2,
          .codes = codes,
          .first_index = index};
}

Panel column_panel(const Task& task, const PanelPlace& place) {
  return panel_of(task, task.m.b, task.m.b.transposed, place, task.m.b_codes);
}

// One tile of rows.
Panel row_panel(const Task& task, int64_t row, int64_t lane, int64_t lanes) {
  Panel panel = panel_of(task, task.m.a, !task.m.a.transposed,
                         {.begin = row,
                          .width = std::min(task.tile_rows, task.m.rows - row),
                          .panel_width = task.tile_rows,
                          .lane = lane,
                          .count = lanes});
  panel.in_groups = task.in_unit();
  return panel;
}

// Columns [begin, begin + count) of op(b) over lanes [first_lane, last_lane), packed: for each
// range of lanes the panels of columns one after the other.
struct PackedColumns {
  int64_t tile_columns;
  int64_t begin, count;
  int64_t first_lane, last_lane;
  LineBuffer data;
  const float* panel(int64_t lane, int64_t lanes, int64_t column) const {
    return data.get() + (lane - first_lane) * round_up(count, tile_columns) + column * lanes;
  }
};

void pack_columns(const Task& task, PackedColumns& packed) {
  const int64_t width = task.tile_columns;
  const int64_t panels = (packed.count + width - 1) / width;
  const int64_t ranges = (packed.last_lane - packed.first_lane + task.range - 1) / task.range;
  at::parallel_for(0, panels * ranges, 4, [&](int64_t begin, int64_t end) {
    const LineBuffer scratch(width * task.range);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t lane = packed.first_lane + i / panels * task.range;
      const int64_t column = i % panels * width;
      const int64_t lanes = std::min(task.range, packed.last_lane - lane);
      const Panel panel = column_panel(task, {.begin = packed.begin + column,
                                              .width = std::min(width, packed.count - column),
                                              .panel_width = width,
                                              .lane = lane,
                                              .count = lanes});
      pack(panel, const_cast<float*>(packed.panel(lane, lanes, column)), scratch.get());
    }
  });
}

// Rows [begin, begin + count) and columns from first_column on of c, and what is needed to fill
// them.
struct RowBlock {
  int64_t begin, count;
  int64_t first_column;
  const float* packed_rows;  // a of the block, panel by panel
  // Where it is summed: an fp32 tensor itself; else scratch, or null where a product of one range
  // of lanes needs none.
  float* sums;
  int64_t sums_stride;
};

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

// Adds the first `rows` x `columns` elements of a tile. Where c has no room for what is computed
// beside them they go through a tile on the stack, in which every element is the same sum in the
// same order.
void multiply_tile(BlockProduct product, Bf16Products products, int64_t rows, int64_t columns) {
  product.rows = products == Bf16Products::kTiles ? round_up(rows, kRowsOfTile) : rows;
  product.columns = padded_columns(columns);
  if (product.rows == rows && product.columns == columns) return multiply(product, products);
  float tile[kTileRowsAtMost * kTileColumns];
  std::fill_n(tile, product.rows * kTileColumns, 0.0f);
  const auto bytes = static_cast<size_t>(columns) * sizeof(float);
  float* const c = product.c;
  const int64_t stride = product.c_stride;
  for (int64_t r = 0; r < rows && product.add; ++r) {
    std::memcpy(tile + r * kTileColumns, c + r * stride, bytes);
  }
  product.c = tile;
  product.c_stride = kTileColumns;
  multiply(product, products);
  for (int64_t r = 0; r < rows; ++r) std::memcpy(c + r * stride, tile + r * kTileColumns, bytes);
}

// A packed panel of b and its place.
struct ColumnPanel {
  const float* data;
  int64_t begin, width;  // columns of the block
  int64_t lane, lanes;
};

void* c_row(const MatmulArguments& m, int64_t row, int64_t column) {
  return at_index(m.c_type, m.c.data, row * m.c.stride + column);
}

// `rows` rows of a bf16 c by the panel's columns, which are rounded behind the last range of lanes,
// while they are in the first cache. What stood there is added then: a tile would have to wait for
// it to be converted before it begins.
void multiply_rounded_tile(const Task& task, BlockProduct product, const ColumnPanel& panel,
                           int64_t rows, void* c) {
  alignas(64) float tile[kTileRowsAtMost * kTileColumns];
  if (product.c == nullptr) {
    product.c = tile;
    product.c_stride = kTileColumns;
  }
  product.add = panel.lane > 0;
  multiply_tile(product, task.products, rows, panel.width);
  if (panel.lane + panel.lanes < task.lanes) return;
  round_tile({rows, panel.width}, product.c, product.c_stride, static_cast<uint16_t*>(c),
             task.m.c.stride, task.m.add);
}

// Where a product finds `rows` rows from row i of the block on.
void set_rows(const Task& task, const RowBlock& block, const ColumnPanel& panel, int64_t i,
              int64_t rows, BlockProduct& product) {
  if (task.rows_in_place && rows == task.tile_rows) {
    const int64_t stride = task.m.a.stride;
    const int64_t index = (block.begin + i) * stride + panel.lane * task.per_lane;
    product.a = static_cast<const float*>(at_index(task.m.type, task.m.a.data, index));
    product.a_row_stride = stride / task.per_lane;
    product.a_inner_stride = kLanesOfTile;
    return;
  }
  product.a = block.packed_rows + i * panel.lanes;
  product.a_row_stride = task.in_unit() ? kLanesOfTile : 1;
  product.a_inner_stride = task.in_unit() ? task.tile_rows * kLanesOfTile : task.tile_rows;
}

// The columns of the panel in c of the block (+)= rows x panel; `between` is called with the number
// of each tile.
template <typename Between>
void multiply_panel(const Task& task, const RowBlock& block, const ColumnPanel& panel,
                    const Between& between) {
  for (int64_t i = 0; i < block.count; i += task.tile_rows) {
    between(i / task.tile_rows);
    const int64_t rows = std::min(task.tile_rows, block.count - i);
    BlockProduct product{
        .rows = rows,
        .columns = panel.width,
        .inner = panel.lanes,
        .a = nullptr,
        .a_row_stride = 0,
        .a_inner_stride = 0,
        .b = panel.data,
        .b_stride = task.tile_columns,
        .c = block.sums == nullptr ? nullptr : block.sums + i * block.sums_stride + panel.begin,
        .c_stride = block.sums_stride,
        .add = task.m.add || panel.lane > 0};
    set_rows(task, block, panel, i, rows, product);
    if (task.m.c_type == Element::kFloat) {
      multiply_tile(product, task.products, rows, panel.width);
    } else {
      multiply_rounded_tile(task, product, panel, rows,
                            c_row(task.m, block.begin + i, block.first_column + panel.begin));
    }
  }
}

// c of the block (+)= rows x columns for lanes [lane, lane + lanes).
void multiply_range(const Task& task, const RowBlock& block, const PackedColumns& columns,
                    int64_t lane, int64_t lanes) {
  for (int64_t j = 0; j < columns.count; j += task.tile_columns) {
    multiply_panel(task, block,
                   {.data = columns.panel(lane, lanes, j),
                    .begin = j,
                    .width = std::min(task.tile_columns, columns.count - j),
                    .lane = lane,
                    .lanes = lanes},
                   [](int64_t) {});
  }
}

void pack_rows(const Task& task, const RowBlock& block, int64_t lane, int64_t lanes, float* packed,
               float* scratch) {
  const int64_t whole_tiles = block.count - block.count % task.tile_rows;
  for (int64_t i = task.rows_in_place ? whole_tiles : 0; i < block.count; i += task.tile_rows) {
    pack(row_panel(task, block.begin + i, lane, lanes), packed + i * lanes, scratch);
  }
}

// Where the thread sums `rows` x `columns` elements from (row, column) of c on.
struct Sums {
  LineBuffer scratch;
  int64_t stride;
  float* at(const MatmulArguments& m, int64_t row, int64_t column) const {
    return m.c_type == Element::kFloat ? static_cast<float*>(c_row(m, row, column)) : scratch.get();
  }
};
Sums sums_of(const Task& task, int64_t rows, int64_t columns) {
  if (task.m.c_type == Element::kFloat) return {{}, task.m.c.stride};
  if (task.lanes <= task.range) return {{}, 0};
  return {LineBuffer(rows * columns), columns};
}

// Rows of tiles [begin, end) of c, a block at a time.
void multiply_rows(const Task& task, const PackedColumns& columns, int64_t begin, int64_t end) {
  const MatmulArguments& m = task.m;
  const TileScope tiles_of_thread(task.in_unit());
  const LineBuffer packed_rows(kBlockRows * task.range);
  const LineBuffer scratch(task.tile_rows * task.range);
  const Sums sums = sums_of(task, kBlockRows, kBlockColumns);
  const int64_t last = std::min(end * task.tile_rows, m.rows);
  for (int64_t row = begin * task.tile_rows; row < last; row += kBlockRows) {
    const RowBlock block{.begin = row,
                         .count = std::min(kBlockRows, last - row),
                         .first_column = columns.begin,
                         .packed_rows = packed_rows.get(),
                         .sums = sums.at(m, row, columns.begin),
                         .sums_stride = sums.stride};
    for (int64_t lane = columns.first_lane; lane < columns.last_lane; lane += task.range) {
      const int64_t lanes = std::min(task.range, columns.last_lane - lane);
      pack_rows(task, block, lane, lanes, packed_rows.get(), scratch.get());
      multiply_range(task, block, columns, lane, lanes);
    }
  }
}

void fill_with_zeros(const MatmulArguments& m) {
  for (int64_t r = 0; r < m.rows; ++r) {
    std::memset(c_row(m, r, 0), 0, static_cast<size_t>(m.columns * size_bytes(m.c_type)));
  }
}

int64_t packed_width(int64_t columns) {
  return round_up(std::min(kBlockColumns, columns), tile_columns_of(columns));
}

// How many lanes of the factor that is packed whole are there at a time. Where one pass over the
// other factor reads them once, a range: gradients of a branch's thin factors sum over all tokens.
// What is rounded at the end is summed in one go.
int64_t packed_lanes(int64_t rows, int64_t columns, int64_t lanes, Element c_type) {
  const bool once = rows <= kBlockRows || packs_rows_whole(rows, columns);
  return once && c_type == Element::kFloat ? std::min(range_of(rows, columns), lanes) : lanes;
}

// Rows of a over lanes [first, last), packed: for each range of lanes all panels.
struct PackedRows {
  int64_t first, last;
  int64_t whole_rows;  // of whole tiles
  LineBuffer data;
  float* range(int64_t lane) const { return data.get() + (lane - first) * whole_rows; }
};

void pack_all_rows(const Task& task, const PackedRows& packed) {
  const int64_t tiles = packed.whole_rows / task.tile_rows;
  const int64_t ranges = (packed.last - packed.first + task.range - 1) / task.range;
  at::parallel_for(0, tiles * ranges, 8, [&](int64_t begin, int64_t end) {
    const LineBuffer scratch(task.tile_rows * task.range);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t lane = packed.first + i / tiles * task.range;
      const int64_t lanes = std::min(task.range, packed.last - lane);
      const int64_t row = i % tiles * task.tile_rows;
      pack(row_panel(task, row, lane, lanes), packed.range(lane) + row * lanes, scratch.get());
    }
  });
}

// All rows of c by the columns of panels [begin, end). A panel of b is packed into the first cache,
// multiplied by all rows and forgotten, while the memory of the next one is on its way.
void multiply_all_rows(const Task& task, const PackedRows& rows, int64_t begin, int64_t end) {
  const MatmulArguments& m = task.m;
  const int64_t tiles = rows.whole_rows / task.tile_rows;
  const int64_t width = task.tile_columns;
  const int64_t ranges = (rows.last - rows.first + task.range - 1) / task.range;
  const TileScope tiles_of_thread(task.in_unit());
  const LineBuffer data(width * task.range), scratch(width * task.range);
  const Sums sums = sums_of(task, m.rows, width);
  const int64_t panels = end - begin;
  const auto place_of = [&](int64_t i) {
    const int64_t panel = task.streams_b ? i % panels : i / ranges;
    const int64_t range = task.streams_b ? i / panels : i % ranges;
    const int64_t column = (begin + panel) * width, lane = rows.first + range * task.range;
    return PanelPlace{.begin = column,
                      .width = std::min(width, m.columns - column),
                      .panel_width = width,
                      .lane = lane,
                      .count = std::min(task.range, rows.last - lane)};
  };
  for (int64_t i = 0; i < panels * ranges; ++i) {
    const PanelPlace place = place_of(i);
    const RowBlock block{.begin = 0,
                         .count = m.rows,
                         .first_column = place.begin,
                         .packed_rows = rows.range(place.lane),
                         .sums = sums.at(m, 0, place.begin),
                         .sums_stride = sums.stride};
    pack(column_panel(task, place), data.get(), scratch.get());
    const Panel next = column_panel(task, place_of(std::min(i + 1, panels * ranges - 1)));
    multiply_panel(task, block,
                   {.data = data.get(),
                    .begin = 0,
                    .width = place.width,
                    .lane = place.lane,
                    .lanes = place.count},
                   [&](int64_t tile) { prefetch(next, tile, tiles); });
  }
}

void multiply_few_rows(const Task& task) {
  const MatmulArguments& m = task.m;
  const int64_t step = packed_lanes(m.rows, m.columns, task.lanes, m.c_type);
  const int64_t whole_rows = round_up(m.rows, task.tile_rows);
  PackedRows rows{0, 0, whole_rows, LineBuffer(whole_rows * step)};
  for (rows.first = 0; rows.first < task.lanes; rows.first += step) {
    rows.last = std::min(rows.first + step, task.lanes);
    pack_all_rows(task, rows);
    at::parallel_for(
        0, (m.columns + task.tile_columns - 1) / task.tile_columns, 1,
        [&](int64_t begin, int64_t end) { multiply_all_rows(task, rows, begin, end); });
  }
}

// Whether the gradient of a tall thin factor is faster as its transpose: the rows of a are read as
// they are stored then, where the unit would want them transposed.
bool is_faster_transposed(const MatmulArguments& m, Bf16Products products) {
  return products == Bf16Products::kTiles && m.a.transposed && m.c_type == Element::kFloat &&
         m.columns <= kThin && m.rows > 2 * kThin && !packs_rows_whole(m.rows, m.columns);
}

// c (+)= transpose of `from` [columns, rows].
void add_transposed(const float* from, int64_t stride, int64_t rows, int64_t columns, bool add,
                    float* c, int64_t c_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < columns; ++j) {
      const float sum = from[j * stride + r];
      c[r * c_stride + j] = add ? c[r * c_stride + j] + sum : sum;
    }
  }
}

// c^T (+)= b^T a^T, some rows of c at a time.
void multiply_transposed(const MatmulArguments& m) {
  // A multiple of 4 KiB would put all rows of a tile into one set of the first cache.
  constexpr int64_t kStride = kBlockColumns + kLanesOfTile;
  const LineBuffer transpose(m.columns * kStride);
  for (int64_t row = 0; row < m.rows; row += kBlockColumns) {
    const int64_t count = std::min(kBlockColumns, m.rows - row);
    const MatmulArguments part{.rows = m.columns,
                               .columns = count,
                               .inner = m.inner,
                               .type = m.type,
                               .a = {m.b.data, m.b.stride, !m.b.transposed},
                               .b = {at_index(m.type, m.a.data, row), m.a.stride, false},
                               .c_type = m.c_type,
                               .c = {transpose.get(), kStride},
                               .add = false};
    multiply_few_rows(task_of(part));
    add_transposed(transpose.get(), kStride, count, m.columns, m.add,
                   static_cast<float*>(c_row(m, row, 0)), m.c.stride);
  }
}

}  // namespace

int64_t matmul_scratch_bytes(int64_t rows, int64_t columns, int64_t inner, Element type,
                             Element c_type) {
  const Bf16Products products = products_of(type);
  const int64_t lanes = lanes_of(inner, products);
  const int64_t lines = packs_rows_whole(rows, columns) ? round_up(rows, tile_rows_of(products))
                                                        : packed_width(columns);
  return lines * packed_lanes(rows, columns, lanes, c_type) * static_cast<int64_t>(sizeof(float));
}

void matmul(const MatmulArguments& m) {
  if (m.inner == 0) {
    if (!m.add) fill_with_zeros(m);
    return;
  }
  const Task task = task_of(m);
  if (packs_rows_whole(m.rows, m.columns)) return multiply_few_rows(task);
  if (is_faster_transposed(m, task.products)) return multiply_transposed(m);
  const int64_t step = packed_lanes(m.rows, m.columns, task.lanes, m.c_type);
  const int64_t tiles = (m.rows + task.tile_rows - 1) / task.tile_rows;
  PackedColumns columns{task.tile_columns, 0, 0, 0, 0, LineBuffer(packed_width(m.columns) * step)};
  for (columns.begin = 0; columns.begin < m.columns; columns.begin += kBlockColumns) {
    columns.count = std::min(kBlockColumns, m.columns - columns.begin);
    for (int64_t lane = 0; lane < task.lanes; lane += step) {
      columns.first_lane = lane;
      columns.last_lane = std::min(lane + step, task.lanes);
      pack_columns(task, columns);
      at::parallel_for(0, tiles, kBlockRows / task.tile_rows, [&](int64_t begin, int64_t end) {
        multiply_rows(task, columns, begin, end);
      });
    }
  }
}

}  // namespace strata::ops::cpu
