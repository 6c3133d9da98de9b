// Packing of panels on the CPU. Never: products.
#include "strata/ops/matmul/matmul_panels.h"

#include <algorithm>
#include <cstring>

#include "strata/ops/matmul/block_product.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

// `n` elements from `offset` on, counted in memory from line 0, inner 0.
void read_elements(const Panel& p, int64_t offset, int64_t n, float* to) {
  if (p.codes != nullptr) {
    quant::cpu::dequantize(*p.codes, p.first_index + offset, n, to);
  } else {
    copy_row(p.type, at_index(p.type, p.first, offset), n, to);
  }
}

int64_t pairs_of(const Panel& p) { return (p.inner + 1) / 2; }

void fill_missing_lines(const Panel& p, int64_t lanes, float* panel) {
  for (int64_t k = 0; k < lanes && p.width < p.panel_width; ++k) {
    std::fill(panel + k * p.panel_width + p.width, panel + (k + 1) * p.panel_width, 0.0f);
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
  fill_missing_lines(p, p.inner, panel);
}

// Whether every line begins with a pair that could be read as an fp32 number, and ends with one.
bool has_whole_pairs(const Panel& p) {
  const auto address = reinterpret_cast<uintptr_t>(p.first);
  return p.inner % 2 == 0 && p.stride % 2 == 0 && address % sizeof(float) == 0;
}

// Lines lie along the inner dimension: their pairs are there as they are. The second of a last odd
// one is zero.
void pack_pairs_of_lines(const Panel& p, float* panel, float* scratch) {
  const int64_t lanes = pairs_of(p);
  if (has_whole_pairs(p)) {
    transpose_block(static_cast<const float*>(p.first), p.stride / 2, p.width, lanes, panel,
                    p.panel_width);
    return fill_missing_lines(p, lanes, panel);
  }
  for (int64_t line = 0; line < p.width; ++line) {
    float* to = scratch + line * lanes;
    to[lanes - 1] = 0;
    std::memcpy(to, at_index(p.type, p.first, line * p.stride),
                static_cast<size_t>(p.inner * size_bytes(p.type)));
  }
  transpose_block(scratch, lanes, p.width, lanes, panel, p.panel_width);
  fill_missing_lines(p, lanes, panel);
}

// Rows of memory whose width is known are copied by a few instructions: a call for each would take
// longer than its copy.
template <int64_t kWidth>
STRATA_INLINE void copy_rows_of(const float* from, int64_t stride, int64_t n, float* to) {
  for (int64_t k = 0; k < n; ++k) std::memcpy(to + k * kWidth, from + k * stride, kWidth * 4);
}
STRATA_VECTORIZED void copy_rows_of_a(const float* from, int64_t stride, int64_t n, float* to) {
  copy_rows_of<kTileRows>(from, stride, n, to);
}
STRATA_VECTORIZED void copy_rows_of_b(const float* from, int64_t stride, int64_t n, float* to) {
  copy_rows_of<kTileColumns>(from, stride, n, to);
}

void pack_rows(const Panel& p, float* panel) {
  if (p.codes == nullptr && p.type == Element::kFloat && p.width == p.panel_width) {
    const auto* first = static_cast<const float*>(p.first);
    if (p.width == kTileRows) return copy_rows_of_a(first, p.stride, p.inner, panel);
    if (p.width == kTileColumns) return copy_rows_of_b(first, p.stride, p.inner, panel);
  }
  for (int64_t k = 0; k < p.inner; ++k) {
    read_elements(p, k * p.stride, p.width, panel + k * p.panel_width);
  }
  fill_missing_lines(p, p.inner, panel);
}

// Lanes of one row of memory and the next.
STRATA_INLINE void interleave(const uint16_t* low, const uint16_t* high, int64_t n, uint32_t* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = low[i] | static_cast<uint32_t>(high[i]) << 16;
}
template <int64_t kWidth>
STRATA_INLINE void interleave_rows_of(const uint16_t* from, int64_t stride, int64_t pairs,
                                      uint32_t* to) {
  for (int64_t k = 0; k < pairs; ++k) {
    const uint16_t* low = from + 2 * k * stride;
    interleave(low, low + stride, kWidth, to + k * kWidth);
  }
}
STRATA_VECTORIZED void interleave_rows_of_a(const uint16_t* from, int64_t stride, int64_t pairs,
                                            uint32_t* to) {
  interleave_rows_of<kTileRows>(from, stride, pairs, to);
}
STRATA_VECTORIZED void interleave_rows_of_b(const uint16_t* from, int64_t stride, int64_t pairs,
                                            uint32_t* to) {
  interleave_rows_of<kTileColumns>(from, stride, pairs, to);
}

// Lines lie beside each other. Returns how many pairs were packed.
int64_t pack_whole_pairs_of_rows(const Panel& p, float* panel) {
  const auto* first = static_cast<const uint16_t*>(p.first);
  auto* to = reinterpret_cast<uint32_t*>(panel);
  if (p.width != p.panel_width) return 0;
  if (p.width == kTileRows) {
    interleave_rows_of_a(first, p.stride, p.inner / 2, to);
  } else if (p.width == kTileColumns) {
    interleave_rows_of_b(first, p.stride, p.inner / 2, to);
  } else {
    return 0;
  }
  return p.inner / 2;
}

void pack_pairs_of_rows(const Panel& p, float* panel) {
  static const uint16_t kZeros[kTileColumns] = {};
  const auto* first = static_cast<const uint16_t*>(p.first);
  for (int64_t k = 2 * pack_whole_pairs_of_rows(p, panel); k < p.inner; k += 2) {
    const uint16_t* low = first + k * p.stride;
    const uint16_t* high = k + 1 < p.inner ? low + p.stride : kZeros;
    interleave(low, high, p.width, reinterpret_cast<uint32_t*>(panel + k / 2 * p.panel_width));
  }
  fill_missing_lines(p, pairs_of(p), panel);
}

void pack_pairs(const Panel& p, float* panel, float* scratch) {
  p.contiguous_lines ? pack_pairs_of_lines(p, panel, scratch) : pack_pairs_of_rows(p, panel);
  std::fill(panel + pairs_of(p) * p.panel_width, panel + p.lanes * p.panel_width, 0.0f);
}

constexpr int64_t kBytesOfGroup = kLanesOfTile * static_cast<int64_t>(sizeof(float));

// A line is there as it is, a group at a time.
void pack_line_in_groups(const Panel& p, int64_t line, float* panel) {
  const auto* from = static_cast<const char*>(at_index(p.type, p.first, line * p.stride));
  float* to = panel + line * kLanesOfTile;
  const int64_t step = p.panel_width * kLanesOfTile;
  int64_t left = p.inner * size_bytes(p.type);
  int64_t lane = 0;
  for (; left >= kBytesOfGroup; left -= kBytesOfGroup, lane += kLanesOfTile) {
    std::memcpy(to, from, kBytesOfGroup);
    from += kBytesOfGroup;
    to += step;
  }
  for (; lane < p.lanes; lane += kLanesOfTile) {
    std::memset(to, 0, kBytesOfGroup);
    std::memcpy(to, from, static_cast<size_t>(left));
    left = 0;
    to += step;
  }
}

void pack_in_groups(const Panel& p, float* panel, float* scratch) {
  if (!p.contiguous_lines) {
    pack_pairs(p, scratch, nullptr);
    const int64_t group = p.panel_width * kLanesOfTile;
    for (int64_t begin = 0; begin < p.lanes * p.panel_width; begin += group) {
      transpose_block(scratch + begin, p.panel_width, kLanesOfTile, p.panel_width, panel + begin,
                      kLanesOfTile);
    }
    return;
  }
  for (int64_t line = 0; line < p.width; ++line) pack_line_in_groups(p, line, panel);
  const int64_t missing = (p.panel_width - p.width) * kLanesOfTile;
  for (int64_t lane = 0; lane < p.lanes; lane += kLanesOfTile) {
    std::fill_n(panel + lane * p.panel_width + p.width * kLanesOfTile, missing, 0.0f);
  }
}

}  // namespace

void pack(const Panel& p, float* panel, float* scratch) {
  if (p.in_groups) return pack_in_groups(p, panel, scratch);
  if (p.of_pairs) return pack_pairs(p, panel, scratch);
  p.contiguous_lines ? pack_contiguous_lines(p, panel, scratch) : pack_rows(p, panel);
}

void prefetch(const Panel& p, int64_t part, int64_t num_parts) {
  if (p.codes != nullptr) return;
  constexpr int64_t kLineBytes = 64;
  const int64_t rows = p.contiguous_lines ? p.width : p.inner;
  const int64_t row_bytes = (p.contiguous_lines ? p.inner : p.width) * size_bytes(p.type);
  for (int64_t row = rows * part / num_parts; row < rows * (part + 1) / num_parts; ++row) {
    const auto* first = static_cast<const char*>(at_index(p.type, p.first, row * p.stride));
    for (int64_t byte = 0; byte < row_bytes; byte += kLineBytes) {
      __builtin_prefetch(first + byte, /*rw=*/0, /*locality=*/2);
    }
  }
}

}  // namespace strata::ops::cpu
