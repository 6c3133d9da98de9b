// The CPU kernels of the quantised formats on raw memory; arguments are checked before.
// Owns: declarations. Never: tensors.
//
// Threads: the quantise functions split their work over at::parallel_for at block borders, so
// results do not depend on the number of threads, and so do decode_mxfp4 and multiply_few_rows. The
// other dequantise functions run on the caller's.
#pragma once

#include <cstdint>

#include "strata/ops/element.h"
#include "strata/ops/instruction_set.h"
#include "strata/ops/quant/codebook.h"
#include "strata/ops/quant/format.h"
#include "strata/ops/quant/int_groups.h"

namespace strata::ops::quant::cpu {

// Elements as they lie in memory; arithmetic is fp32.
struct Values {
  Element type;
  const void* data;
};

// codes [(n + 1) / 2], scales [blocks]; the last block may be short. The element after an odd count
// is coded as 0. A block with a NaN has a NaN scale and the highest code everywhere.
// `set`: at most best_instruction_set(); the results do not depend on it.
void quantize_4bit(Kind kind, int64_t block, Values x, int64_t n, uint8_t* codes, float* scales,
                   InstructionSet set = best_instruction_set());

// How values are rounded to those of the 8-bit dynamic map.
enum class Rounding {
  kTable,    // by 65,536 equal steps of [-1, 1], as bitsandbytes does on CPUs
  kNearest,  // to the nearest value, as published and as its CUDA kernels do
};
// One block size for that map: codes [n], scales [blocks]. NaN counts as nothing in the scale.
void quantize_dynamic(bool is_signed, Rounding rounding, int64_t block, const float* x, int64_t n,
                      uint8_t* codes, float* scales);
void dequantize_dynamic(bool is_signed, int64_t block, const uint8_t* codes, const float* scales,
                        int64_t n, float* x);

// LLM.int8(): codes [rows, columns], scales [rows] = the largest magnitude of the row. Elements are
// rounded to fp16 first.
void quantize_rows(Values x, int64_t rows, int64_t columns, int8_t* codes, float* scales,
                   InstructionSet set = best_instruction_set());

// A quantised matrix whose scales are fp32 (second-level scales are resolved before).
struct MatrixCodes {
  Kind kind;
  int64_t block;
  int64_t columns;
  const uint8_t* codes;
  const float* scales;
  int64_t tile_rows = 1;              // fp8, whose tiles are `block` columns wide
  Element through = Element::kFloat;  // values are rounded to it; of 8 bits none are
  IntGroups ints = {};                // whole numbers, which have no `scales` but theirs
};
// Elements [begin, begin + count) of the flattened matrix; 8 bits and whole numbers: within one
// row.
void dequantize(const MatrixCodes& matrix, int64_t begin, int64_t count, float* x);

// So many rows of x are few.
inline constexpr int64_t kMostFewRows = 16;
struct FewRows {
  const float* x;  // [rows, columns], of `back` [rows, weight_rows]
  float* y;        // the other of them
  int64_t rows;    // at most kMostFewRows
  int64_t weight_rows;
  bool back;
  bool rounds_to_bf16;  // what is decoded
};
// y = x W^T, of `back` y = x W, with W [weight_rows, columns] in codes. Sums are fp32, each in one
// order whatever the number of threads. Not of MXFP4.
void multiply_few_rows(const MatrixCodes& matrix, const FewRows& product);

// A matrix [rows, columns] in MXFP4, whose codes are those of its transpose: codes [columns,
// rows / 2], the first of two elements in the low half of a byte, scales [columns, rows / 32]: the
// exponents of powers of two, 127 more than they are. Requires: rows is a multiple of 32.
struct Mxfp4Codes {
  const uint8_t *codes, *scales;
  int64_t rows, columns;
};
// A part of a matrix: rows [first_row, last_row) of the columns [first_column, last_column).
struct Window {
  int64_t first_row, last_row, first_column, last_column;
};
struct DecodedRows {
  Element type;    // fp32 or bf16; every value is one of bf16, scales of 255 give infinity and NaN
  void* data;      // of the window's first element
  int64_t stride;  // elements from row to row
  bool through_half = false;  // rounded to fp16 on the way
};
void decode_mxfp4(const Mxfp4Codes& matrix, const Window& window, const DecodedRows& out);

}  // namespace strata::ops::quant::cpu
