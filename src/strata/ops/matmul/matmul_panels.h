// Panels of a matrix product (matmul_cpu.cpp): lines of a factor side by side, in the order in
// which register tiles read them. Owns: packing. Never: products, threads.
//
// A line is a row of op(a) or a column of op(b). A lane, the element of a panel, is one fp32
// number, or a pair of bf16 ones that follow each other along the inner dimension where the
// processor multiplies those. For its matrix unit lanes come in groups of kLanesOfTile, and rows in
// each group one after the other.
#pragma once

#include "strata/ops/element.h"
#include "strata/ops/quant/kernels.h"

namespace strata::ops::cpu {

constexpr int64_t kTileRows = 12;  // of c, in registers: the lines of a panel of a
constexpr int64_t kTileColumns = 32;
constexpr int64_t kUnitRows = 32;  // instead of kTileRows, of c in the matrix unit
constexpr int64_t kInner = 512;    // lanes of a panel's inner dimension, at most

// `width` lines of a factor, each of `inner` elements, become panel[lane * panel_width + line];
// missing lines up to panel_width are zero, and so are lanes up to `lanes`. Contiguous lines
// (stored along the inner dimension) are transposed, the others copied; in groups it is the other
// way round: panel[(lane / kLanesOfTile * panel_width + line) * kLanesOfTile + lane %
// kLanesOfTile].
struct Panel {
  Element type;
  const void* first;  // line 0, inner 0
  int64_t stride;     // between rows in memory
  bool contiguous_lines;
  int64_t width, inner, panel_width;
  int64_t lanes;  // at least those of `inner`
  bool of_pairs = false;
  bool in_groups = false;  // pairs in whole groups
  // Quantised factors: what is decoded, and the place of line 0, inner 0 in it.
  const quant::cpu::MatrixCodes* codes = nullptr;
  int64_t first_index = 0;
};
// `scratch`: panel_width * kInner lanes.
void pack(const Panel& p, float* panel, float* scratch);

// Asks for the memory of part `part` of `num_parts` of a panel that is packed soon.
void prefetch(const Panel& p, int64_t part, int64_t num_parts);

}  // namespace strata::ops::cpu
