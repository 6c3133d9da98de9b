// Large products on the CPU in the manner of BLIS (Van Zee and van de Geijn 2015): both factors are
// copied into panels that the register tiles read from one end to the other, sized so that a panel
// of b stays in the first cache and a block of a in the second. Never: checks.
#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "strata/ops/block_product.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/quant/kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

constexpr int64_t kTileRows = 12;  // of c, in registers
constexpr int64_t kTileColumns = 32;
constexpr int64_t kInner = 256;          // inner dimension of a panel: 32 KiB of b
constexpr int64_t kBlockRows = 96;       // rows of a packed at once: 96 KiB
constexpr int64_t kBlockColumns = 1024;  // columns of b packed at once

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

std::unique_ptr<float[]> make_scratch(int64_t n) {
  return std::unique_ptr<float[]>(new float[static_cast<size_t>(n)]);
}

// Packs `width` lines of a factor, each of `inner` elements, side by side into
// panel[k * panel_width + line]; missing lines up to panel_width are zero.
//
// A line is a row of op(a) or a column of op(b). Contiguous lines (stored along the inner
// dimension) are transposed, the others copied.
struct Panel {
  Element type;
  const void* first;  // line 0, inner 0
  int64_t stride;     // between rows in memory
  bool contiguous_lines;
  int64_t width, inner, panel_width;
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

void pack(const Panel& p, float* panel, float* scratch) {
  if (p.contiguous_lines) return pack_contiguous_lines(p, panel, scratch);
  for (int64_t k = 0; k < p.inner; ++k) {
    float* row = panel + k * p.panel_width;
    read_elements(p, k * p.stride, p.width, row);
    std::fill(row + p.width, row + p.panel_width, 0.0f);
  }
}

// The panel of lines [line, line + width) and inner elements [k, k + inner).
Panel panel_of(Element type, const MatmulFactor& factor, bool contiguous_lines, int64_t line,
               int64_t width, int64_t k, int64_t inner, int64_t panel_width,
               const quant::cpu::MatrixCodes* codes = nullptr) {
  const int64_t index = contiguous_lines ? line * factor.stride + k : k * factor.stride + line;
  return {.type = type,
          .first = codes == nullptr ? at_index(type, factor.data, index) : nullptr,
          .stride = factor.stride,
          .contiguous_lines = contiguous_lines,
          .width = width,
          .inner = inner,
          .panel_width = panel_width,
          .codes = codes,
          .first_index = index};
}

// Columns [begin, begin + count) of op(b), packed: for each range of the inner dimension the panels
// of kTileColumns columns one after the other.
struct PackedColumns {
  int64_t begin, count;
  std::unique_ptr<float[]> data;
  const float* panel(int64_t k, int64_t inner, int64_t column) const {
    return data.get() + k * round_up(count, kTileColumns) + column * inner;
  }
};

void pack_columns(const MatmulArguments& m, PackedColumns& packed) {
  const int64_t panels = (packed.count + kTileColumns - 1) / kTileColumns;
  const int64_t ranges = (m.inner + kInner - 1) / kInner;
  at::parallel_for(0, panels * ranges, 4, [&](int64_t begin, int64_t end) {
    const auto scratch = make_scratch(kTileColumns * kInner);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t k = i / panels * kInner;
      const int64_t column = i % panels * kTileColumns;
      const int64_t inner = std::min(kInner, m.inner - k);
      const Panel panel = panel_of(m.type, m.b, m.b.transposed, packed.begin + column,
                                   std::min(kTileColumns, packed.count - column), k, inner,
                                   kTileColumns, m.b_codes);
      pack(panel, const_cast<float*>(packed.panel(k, inner, column)), scratch.get());
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

// Adds one whole or partial tile; partial ones go through a tile on the stack.
void multiply_tile(const BlockProduct& whole, int64_t rows, int64_t columns) {
  if (rows == kTileRows && columns == kTileColumns) return block_product(whole);
  float tile[kTileRows * kTileColumns];
  BlockProduct partial = whole;
  partial.rows = rows;
  partial.c = tile;
  partial.c_stride = kTileColumns;
  partial.add = false;
  block_product(partial);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < columns; ++j) {
      float& to = whole.c[r * whole.c_stride + j];
      to = whole.add ? to + tile[r * kTileColumns + j] : tile[r * kTileColumns + j];
    }
  }
}

// c of the block (+)= rows x columns for one range of the inner dimension.
void multiply_range(const RowBlock& block, const PackedColumns& columns, int64_t k, int64_t inner,
                    bool add) {
  for (int64_t j = 0; j < columns.count; j += kTileColumns) {
    for (int64_t i = 0; i < block.count; i += kTileRows) {
      multiply_tile({.rows = kTileRows,
                     .columns = kTileColumns,
                     .inner = inner,
                     .a = block.packed_rows + i * inner,
                     .a_row_stride = 1,
                     .a_inner_stride = kTileRows,
                     .b = columns.panel(k, inner, j),
                     .b_stride = kTileColumns,
                     .c = block.c + i * block.c_stride + j,
                     .c_stride = block.c_stride,
                     .add = add},
                    std::min(kTileRows, block.count - i),
                    std::min(kTileColumns, columns.count - j));
    }
  }
}

void pack_rows(const MatmulArguments& m, const RowBlock& block, int64_t k, int64_t inner,
               float* scratch) {
  for (int64_t i = 0; i < block.count; i += kTileRows) {
    pack(panel_of(m.type, m.a, !m.a.transposed, block.begin + i,
                  std::min(kTileRows, block.count - i), k, inner, kTileRows),
         block.packed_rows + i * inner, scratch);
  }
}

void* c_row(const MatmulArguments& m, int64_t row, int64_t column) {
  return at_index(m.c_type, m.c.data, row * m.c.stride + column);
}

void multiply_block(const MatmulArguments& m, RowBlock& block, const PackedColumns& columns,
                    float* scratch) {
  const bool is_rounded = m.c_type == Element::kBFloat16;
  if (!is_rounded) {
    block.c = static_cast<float*>(c_row(m, block.begin, columns.begin));
    block.c_stride = m.c.stride;
  }
  for (int64_t r = 0; is_rounded && m.add && r < block.count; ++r) {
    copy_row(m.c_type, c_row(m, block.begin + r, columns.begin), columns.count,
             block.c + r * block.c_stride);
  }
  for (int64_t k = 0; k < m.inner; k += kInner) {
    const int64_t inner = std::min(kInner, m.inner - k);
    pack_rows(m, block, k, inner, scratch);
    multiply_range(block, columns, k, inner, m.add || k > 0);
  }
  for (int64_t r = 0; is_rounded && r < block.count; ++r) {
    finish_row(m.c_type, block.c + r * block.c_stride, columns.count,
               c_row(m, block.begin + r, columns.begin));
  }
}

void multiply_rows(const MatmulArguments& m, const PackedColumns& columns, int64_t begin,
                   int64_t end) {
  const auto packed_rows = make_scratch(kBlockRows * kInner);
  const auto scratch = make_scratch(kTileRows * kInner);
  std::unique_ptr<float[]> c;
  if (m.c_type == Element::kBFloat16) c = make_scratch(kBlockRows * kBlockColumns);
  for (int64_t b = begin; b < end; ++b) {
    RowBlock block{.begin = b * kBlockRows,
                   .count = std::min(kBlockRows, m.rows - b * kBlockRows),
                   .packed_rows = packed_rows.get(),
                   .c = c.get(),
                   .c_stride = kBlockColumns};
    multiply_block(m, block, columns, scratch.get());
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

}  // namespace

int64_t matmul_scratch_bytes(int64_t columns, int64_t inner) {
  return packed_width(columns) * inner * static_cast<int64_t>(sizeof(float));
}

void matmul(const MatmulArguments& m) {
  if (m.inner == 0) {
    if (!m.add) fill_with_zeros(m);
    return;
  }
  PackedColumns columns{0, 0, make_scratch(packed_width(m.columns) * m.inner)};
  for (columns.begin = 0; columns.begin < m.columns; columns.begin += kBlockColumns) {
    columns.count = std::min(kBlockColumns, m.columns - columns.begin);
    pack_columns(m, columns);
    const int64_t blocks = (m.rows + kBlockRows - 1) / kBlockRows;
    at::parallel_for(0, blocks, 1,
                     [&](int64_t begin, int64_t end) { multiply_rows(m, columns, begin, end); });
  }
}

}  // namespace strata::ops::cpu
