// Large products on the CPU in the manner of BLIS (Van Zee and van de Geijn 2015): both factors are
// copied into panels that the register tiles read from one end to the other, sized so that a panel
// of b stays in the first cache and a block of a in the second. A panel's element, a lane, is one
// fp32 number, or a pair of bf16 ones that follow each other along the inner dimension where the
// processor multiplies those. Never: checks.
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "strata/ops/block_product.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/line_buffer.h"
#include "strata/ops/quant/kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

constexpr int64_t kTileRows = 12;  // of c, in registers
constexpr int64_t kTileColumns = 32;
constexpr int64_t kInner = 256;                  // lanes of a panel's inner dimension: 32 KiB of b
constexpr int64_t kBlockRows = kRowsOfOneBlock;  // rows of a packed at once: 96 KiB
constexpr int64_t kBlockColumns = 1024;          // columns of b packed at once

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// What is multiplied, and how many elements of the inner dimension are a lane.
struct Task {
  const MatmulArguments& m;
  int64_t per_lane;  // 1, or 2 for pairs
  int64_t lanes;     // of the inner dimension
};

bool multiplies_pairs(Element type) { return type == Element::kBFloat16 && has_pair_product(); }

Task task_of(const MatmulArguments& m) {
  const int64_t per_lane = multiplies_pairs(m.type) && m.b_codes == nullptr ? 2 : 1;
  return {m, per_lane, (m.inner + per_lane - 1) / per_lane};
}

// Packs `width` lines of a factor, each of `inner` elements, side by side into
// panel[lane * panel_width + line]; missing lines up to panel_width are zero.
//
// A line is a row of op(a) or a column of op(b). Contiguous lines (stored along the inner
// dimension) are transposed, the others copied.
struct Panel {
  Element type;
  const void* first;  // line 0, inner 0
  int64_t stride;     // between rows in memory
  bool contiguous_lines;
  int64_t width, inner, panel_width;
  bool of_pairs = false;
  // Quantised factors: what is decoded, and the place of line 0, inner 0 in it.
  const quant::cpu::MatrixCodes* codes = nullptr;
  int64_t first_index = 0;
};

// `n` elements from `offset` on, counted in memory from line 0, inner 0.
void read_elements(const Panel& p, int64_t offset, int64_t n, float* to) {
  if (p.codes != nullptr) {
    quant::cpu::dequantize(*p.codes, p.first_index + offset, n, to);
  } else {
    copy_row(p.type, at_index(p.type, p.first, offset), n, to);
  }
}

void pack_contiguous_lines(const Panel& p, float* panel, float* scratch) {
  if (p.codes == nullptr && p.type == Element::kFloat) {
    transpose_block(static_cast<const float*>(p.first), p.stride, p.width, p.inner, panel,
                    p.panel_width);
  } else {
    for (int64_t line = 0; line < p.width; ++line) {
      read_elements(p, line * p.stride, p.inner, scratch + line * p.inner);
    }
    transpose_block(scratch, p.inner, p.width, p.inner, panel, p.panel_width);
  }
  for (int64_t k = 0; k < p.inner && p.width < p.panel_width; ++k) {
    std::fill(panel + k * p.panel_width + p.width, panel + (k + 1) * p.panel_width, 0.0f);
  }
}

// Lines lie along the inner dimension: their pairs are there as they are. The second of a last odd
// one is zero.
void pack_pairs_of_lines(const Panel& p, float* panel, float* scratch) {
  const int64_t lanes = (p.inner + 1) / 2;
  for (int64_t line = 0; line < p.width; ++line) {
    float* to = scratch + line * lanes;
    to[lanes - 1] = 0;
    std::memcpy(to, at_index(p.type, p.first, line * p.stride),
                static_cast<size_t>(p.inner * size_bytes(p.type)));
  }
  transpose_block(scratch, lanes, p.width, lanes, panel, p.panel_width);
  for (int64_t k = 0; k < lanes && p.width < p.panel_width; ++k) {
    std::fill(panel + k * p.panel_width + p.width, panel + (k + 1) * p.panel_width, 0.0f);
  }
}

STRATA_VECTORIZED void interleave(const uint16_t* low, const uint16_t* high, int64_t n,
                                  uint32_t* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = low[i] | static_cast<uint32_t>(high[i]) << 16;
}

// Lines lie beside each other: pairs are made of one row of memory and the next.
void pack_pairs_of_rows(const Panel& p, float* panel) {
  static const uint16_t kZeros[kTileColumns] = {};
  const auto* first = static_cast<const uint16_t*>(p.first);
  for (int64_t k = 0; k < p.inner; k += 2) {
    float* row = panel + k / 2 * p.panel_width;
    const uint16_t* low = first + k * p.stride;
    const uint16_t* high = k + 1 < p.inner ? low + p.stride : kZeros;
    interleave(low, high, p.width, reinterpret_cast<uint32_t*>(row));
    std::fill(row + p.width, row + p.panel_width, 0.0f);
  }
}

void pack(const Panel& p, float* panel, float* scratch) {
  if (p.of_pairs && p.contiguous_lines) return pack_pairs_of_lines(p, panel, scratch);
  if (p.of_pairs) return pack_pairs_of_rows(p, panel);
  if (p.contiguous_lines) return pack_contiguous_lines(p, panel, scratch);
  for (int64_t k = 0; k < p.inner; ++k) {
    float* row = panel + k * p.panel_width;
    read_elements(p, k * p.stride, p.width, row);
    std::fill(row + p.width, row + p.panel_width, 0.0f);
  }
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
          .of_pairs = task.per_lane == 2,
          .codes = codes,
          .first_index = index};
}

// Columns [begin, begin + count) of op(b) over lanes [first_lane, last_lane), packed: for each
// range of kInner lanes the panels of kTileColumns columns one after the other.
struct PackedColumns {
  int64_t begin, count;
  int64_t first_lane, last_lane;
  LineBuffer data;
  const float* panel(int64_t lane, int64_t lanes, int64_t column) const {
    return data.get() + (lane - first_lane) * round_up(count, kTileColumns) + column * lanes;
  }
};

void pack_columns(const Task& task, PackedColumns& packed) {
  const int64_t panels = (packed.count + kTileColumns - 1) / kTileColumns;
  const int64_t ranges = (packed.last_lane - packed.first_lane + kInner - 1) / kInner;
  at::parallel_for(0, panels * ranges, 4, [&](int64_t begin, int64_t end) {
    const LineBuffer scratch(kTileColumns * kInner);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t lane = packed.first_lane + i / panels * kInner;
      const int64_t column = i % panels * kTileColumns;
      const int64_t lanes = std::min(kInner, packed.last_lane - lane);
      const Panel panel = panel_of(task, task.m.b, task.m.b.transposed,
                                   {.begin = packed.begin + column,
                                    .width = std::min(kTileColumns, packed.count - column),
                                    .panel_width = kTileColumns,
                                    .lane = lane,
                                    .count = lanes},
                                   task.m.b_codes);
      pack(panel, const_cast<float*>(packed.panel(lane, lanes, column)), scratch.get());
    }
  });
}

// Rows [begin, begin + count) of c and what is needed to fill them.
struct RowBlock {
  int64_t begin, count;
  float* packed_rows;  // a of the block, panels of kTileRows
  float* c;            // fp32: the tensor itself or scratch
  int64_t c_stride;
};

void multiply(const BlockProduct& product, bool of_pairs) {
  of_pairs ? pair_product(product) : block_product(product);
}

// Adds one whole or partial tile; partial ones go through a tile on the stack.
void multiply_tile(const BlockProduct& whole, bool of_pairs, int64_t rows, int64_t columns) {
  if (rows == kTileRows && columns == kTileColumns) return multiply(whole, of_pairs);
  float tile[kTileRows * kTileColumns];
  BlockProduct partial = whole;
  partial.rows = rows;
  partial.columns = padded_columns(columns);
  partial.c = tile;
  partial.c_stride = kTileColumns;
  partial.add = false;
  multiply(partial, of_pairs);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < columns; ++j) {
      float& to = whole.c[r * whole.c_stride + j];
      to = whole.add ? to + tile[r * kTileColumns + j] : tile[r * kTileColumns + j];
    }
  }
}

// c of the block (+)= rows x columns for lanes [lane, lane + lanes).
void multiply_range(const Task& task, const RowBlock& block, const PackedColumns& columns,
                    int64_t lane, int64_t lanes) {
  for (int64_t j = 0; j < columns.count; j += kTileColumns) {
    for (int64_t i = 0; i < block.count; i += kTileRows) {
      multiply_tile({.rows = kTileRows,
                     .columns = kTileColumns,
                     .inner = lanes,
                     .a = block.packed_rows + i * lanes,
                     .a_row_stride = 1,
                     .a_inner_stride = kTileRows,
                     .b = columns.panel(lane, lanes, j),
                     .b_stride = kTileColumns,
                     .c = block.c + i * block.c_stride + j,
                     .c_stride = block.c_stride,
                     .add = task.m.add || lane > 0},
                    task.per_lane == 2, std::min(kTileRows, block.count - i),
                    std::min(kTileColumns, columns.count - j));
    }
  }
}

void pack_rows(const Task& task, const RowBlock& block, int64_t lane, int64_t lanes,
               float* scratch) {
  for (int64_t i = 0; i < block.count; i += kTileRows) {
    pack(panel_of(task, task.m.a, !task.m.a.transposed,
                  {.begin = block.begin + i,
                   .width = std::min(kTileRows, block.count - i),
                   .panel_width = kTileRows,
                   .lane = lane,
                   .count = lanes}),
         block.packed_rows + i * lanes, scratch);
  }
}

void* c_row(const MatmulArguments& m, int64_t row, int64_t column) {
  return at_index(m.c_type, m.c.data, row * m.c.stride + column);
}

void multiply_block(const Task& task, RowBlock& block, const PackedColumns& columns,
                    float* scratch) {
  const MatmulArguments& m = task.m;
  const bool is_rounded = m.c_type == Element::kBFloat16;
  if (!is_rounded) {
    block.c = static_cast<float*>(c_row(m, block.begin, columns.begin));
    block.c_stride = m.c.stride;
  }
  for (int64_t r = 0; is_rounded && m.add && r < block.count; ++r) {
    copy_row(m.c_type, c_row(m, block.begin + r, columns.begin), columns.count,
             block.c + r * block.c_stride);
  }
  for (int64_t lane = columns.first_lane; lane < columns.last_lane; lane += kInner) {
    const int64_t lanes = std::min(kInner, columns.last_lane - lane);
    pack_rows(task, block, lane, lanes, scratch);
    multiply_range(task, block, columns, lane, lanes);
  }
  for (int64_t r = 0; is_rounded && r < block.count; ++r) {
    finish_row(m.c_type, block.c + r * block.c_stride, columns.count,
               c_row(m, block.begin + r, columns.begin));
  }
}

void multiply_rows(const Task& task, const PackedColumns& columns, int64_t begin, int64_t end) {
  const MatmulArguments& m = task.m;
  const LineBuffer packed_rows(kBlockRows * kInner);
  const LineBuffer scratch(kTileRows * kInner);
  LineBuffer c;
  if (m.c_type == Element::kBFloat16) c = LineBuffer(kBlockRows * kBlockColumns);
  for (int64_t b = begin; b < end; ++b) {
    RowBlock block{.begin = b * kBlockRows,
                   .count = std::min(kBlockRows, m.rows - b * kBlockRows),
                   .packed_rows = packed_rows.get(),
                   .c = c.get(),
                   .c_stride = kBlockColumns};
    multiply_block(task, block, columns, scratch.get());
  }
}

void fill_with_zeros(const MatmulArguments& m) {
  for (int64_t r = 0; r < m.rows; ++r) {
    std::memset(c_row(m, r, 0), 0, static_cast<size_t>(m.columns * size_bytes(m.c_type)));
  }
}

int64_t packed_width(int64_t columns) {
  return round_up(std::min(kBlockColumns, columns), kTileColumns);
}

// How many lanes are packed at a time. One block of rows reads what is packed once, so that all of
// it need not be there together: gradients of a branch's thin factors sum over all tokens. What is
// rounded at the end is summed in one go.
int64_t packed_lanes(int64_t rows, int64_t lanes, Element c_type) {
  return rows <= kBlockRows && c_type == Element::kFloat ? std::min(kInner, lanes) : lanes;
}

}  // namespace

int64_t matmul_scratch_bytes(int64_t rows, int64_t columns, int64_t inner, Element type,
                             Element c_type) {
  const int64_t lanes = multiplies_pairs(type) ? (inner + 1) / 2 : inner;
  return packed_width(columns) * packed_lanes(rows, lanes, c_type) *
         static_cast<int64_t>(sizeof(float));
}

void matmul(const MatmulArguments& m) {
  if (m.inner == 0) {
    if (!m.add) fill_with_zeros(m);
    return;
  }
  const Task task = task_of(m);
  const int64_t step = packed_lanes(m.rows, task.lanes, m.c_type);
  const int64_t blocks = (m.rows + kBlockRows - 1) / kBlockRows;
  PackedColumns columns{0, 0, 0, 0, LineBuffer(packed_width(m.columns) * step)};
  for (columns.begin = 0; columns.begin < m.columns; columns.begin += kBlockColumns) {
    columns.count = std::min(kBlockColumns, m.columns - columns.begin);
    for (int64_t lane = 0; lane < task.lanes; lane += step) {
      columns.first_lane = lane;
      columns.last_lane = std::min(lane + step, task.lanes);
      pack_columns(task, columns);
      at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
        multiply_rows(task, columns, begin, end);
      });
    }
  }
}

}  // namespace strata::ops::cpu
