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
#include "strata/ops/matmul/block_product.h"
#include "strata/ops/matmul/matmul_panels.h"
#include "strata/ops/matmul/matmul_task.h"
#include "strata/ops/matmul/panel_product.h"

namespace strata::ops::cpu {

namespace {

// Lines [begin, begin + width) of a factor over lanes [lane, lane + count).
struct PanelPlace {
  int64_t begin, width, panel_width;
  int64_t lane, count;
};

Panel panel_of(const MatmulTask& task, const MatmulFactor& factor, bool contiguous_lines,
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

Panel column_panel(const MatmulTask& task, const PanelPlace& place) {
  return panel_of(task, task.m.b, task.m.b.transposed, place, task.m.b_codes);
}

// One tile of rows.
Panel row_panel(const MatmulTask& task, int64_t row, int64_t lane, int64_t lanes) {
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

void pack_columns(const MatmulTask& task, PackedColumns& packed) {
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

// c of the block (+)= rows x columns for lanes [lane, lane + lanes).
void multiply_range(const MatmulTask& task, const RowBlock& block, const PackedColumns& columns,
                    int64_t lane, int64_t lanes, RoundedTiles& rounded) {
  for (int64_t j = 0; j < columns.count; j += task.tile_columns) {
    multiply_panel(task, block,
                   {.data = columns.panel(lane, lanes, j),
                    .begin = j,
                    .width = std::min(task.tile_columns, columns.count - j),
                    .lane = lane,
                    .lanes = lanes},
                   rounded);
  }
}

void pack_rows(const MatmulTask& task, const RowBlock& block, int64_t lane, int64_t lanes,
               float* packed, float* scratch) {
  const int64_t whole_tiles = block.count - block.count % task.tile_rows;
  for (int64_t i = task.rows_in_place ? whole_tiles : 0; i < block.count; i += task.tile_rows) {
    pack(row_panel(task, block.begin + i, lane, lanes), packed + i * lanes, scratch);
  }
}

// Rows a multiple of 4 KiB apart share one set of the first cache, in which a tile has no room.
constexpr int64_t kPaddingOfRows = 16;

// Where the thread sums `rows` x `columns` elements from (row, column) of c on.
struct Sums {
  LineBuffer scratch;
  int64_t stride;
  float* at(const MatmulArguments& m, int64_t row, int64_t column) const {
    return m.c_type == Element::kFloat ? static_cast<float*>(c_row(m, row, column)) : scratch.get();
  }
};
Sums sums_of(const MatmulTask& task, int64_t rows, int64_t columns) {
  if (task.m.c_type == Element::kFloat) return {{}, task.m.c.stride};
  if (rounds_tiles(task)) return {{}, 0};
  const int64_t stride = columns + kPaddingOfRows;
  return {LineBuffer(rows * stride), stride};
}

// Rows of tiles [begin, end) of c, a block at a time.
void multiply_rows(const MatmulTask& task, const PackedColumns& columns, int64_t begin,
                   int64_t end) {
  const MatmulArguments& m = task.m;
  const TileScope tiles_of_thread(task.in_unit());
  const LineBuffer packed_rows(task.block_rows * task.range);
  const LineBuffer scratch(task.tile_rows * task.range);
  const Sums sums = sums_of(task, task.block_rows, round_up(columns.count, task.tile_columns));
  const int64_t last = std::min(end * task.tile_rows, m.rows);
  RoundedTiles rounded(m);
  for (int64_t row = begin * task.tile_rows; row < last; row += task.block_rows) {
    const RowBlock block{.begin = row,
                         .count = std::min(task.block_rows, last - row),
                         .first_column = columns.begin,
                         .packed_rows = packed_rows.get(),
                         .sums = sums.at(m, row, columns.begin),
                         .sums_stride = sums.stride};
    for (int64_t lane = columns.first_lane; lane < columns.last_lane; lane += task.range) {
      const int64_t lanes = std::min(task.range, columns.last_lane - lane);
      pack_rows(task, block, lane, lanes, packed_rows.get(), scratch.get());
      multiply_range(task, block, columns, lane, lanes, rounded);
    }
    round_sums(task, block, columns.count);
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

void pack_all_rows(const MatmulTask& task, const PackedRows& packed) {
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
void multiply_all_rows(const MatmulTask& task, const PackedRows& rows, int64_t begin, int64_t end) {
  const MatmulArguments& m = task.m;
  const int64_t width = task.tile_columns;
  const int64_t ranges = (rows.last - rows.first + task.range - 1) / task.range;
  const TileScope tiles_of_thread(task.in_unit());
  const LineBuffer data(width * task.range), scratch(width * task.range);
  const Sums sums = sums_of(task, m.rows, width);
  RoundedTiles rounded(m);
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
                   rounded, &next);
    if (place.lane + place.count == task.lanes) round_sums(task, block, place.width);
  }
}

void multiply_few_rows(const MatmulTask& task) {
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

constexpr int64_t kTransposeStride = kBlockColumns + kPaddingOfRows;

// c^T (+)= b^T a^T, some rows of c at a time.
void multiply_transposed(const MatmulArguments& m) {
  constexpr int64_t kStride = kTransposeStride;
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
                               .add = m.add};
    auto* c = static_cast<float*>(c_row(m, row, 0));
    if (m.add) transpose_block(c, m.c.stride, count, m.columns, transpose.get(), kStride);
    multiply_few_rows(task_of(part));
    transpose_block(transpose.get(), kStride, m.columns, count, c, m.c.stride);
  }
}

}  // namespace

int64_t matmul_scratch_bytes(int64_t rows, int64_t columns, int64_t inner, Element type,
                             Element c_type) {
  const Bf16Products products = products_of(type);
  const int64_t lanes = lanes_of(inner, products);
  const int64_t lines = packs_rows_whole(rows, columns) ? round_up(rows, tile_rows_of(products))
                                                        : packed_width(columns);
  const int64_t packed = lines * packed_lanes(rows, columns, lanes, c_type);
  const int64_t of_transpose =
      !is_tall_and_thin(rows, columns, c_type)
          ? 0
          : columns * kTransposeStride + round_up(columns, tile_rows_of(products)) *
                                             packed_lanes(columns, kBlockColumns, lanes, c_type);
  return std::max(packed, of_transpose) * static_cast<int64_t>(sizeof(float));
}

void matmul(const MatmulArguments& m) {
  if (m.inner == 0) {
    if (!m.add) fill_with_zeros(m);
    return;
  }
  const MatmulTask task = task_of(m);
  if (packs_rows_whole(m.rows, m.columns)) return multiply_few_rows(task);
  if (is_faster_transposed(m)) return multiply_transposed(m);
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
