// The kernels for NVIDIA GPUs on raw device memory, the list of cpu_kernels.h; arguments are
// checked before. Products of matrices and attention are libtorch's (matmul/matmul.cpp,
// attention/attention_cuda.cpp). Owns: declarations. Never: tensors, headers of CUDA, so that every
// compiler reads it.
//
// Stream: every kernel is enqueued and returns at once. Errors of the launch: InternalError.
// Results do not depend on how blocks are scheduled: nothing is summed by atomic operations.
#pragma once

#include <cstdint>

#include "strata/ops/adamw_factors.h"
#include "strata/ops/kernel_arguments.h"
#include "strata/ops/quant/int_groups.h"

struct CUstream_st;

namespace strata::ops::cuda {

using Stream = CUstream_st*;

void rms_norm(const RmsNormArguments& a, void* y, double eps, Stream stream);
// `partials`: fp32 [rms_norm_partials(tokens, channels), channels]; null without a weight gradient.
void rms_norm_backward(const RmsNormArguments& a, const RmsNormGradients& g, float* partials,
                       Stream stream);
inline int64_t rms_norm_partials(int64_t tokens, int64_t channels) {
  // As many as an H100 runs at once, 1536 threads a multiprocessor: blocks of short rows are small.
  // Half as many had too few loads under way for its memory (1.7 of 4.1 TB/s, rows of 2048).
  constexpr int64_t kMultiprocessors = 132, kShortRow = 2048;
  const int64_t most = kMultiprocessors * (channels <= kShortRow ? 6 : 3);
  return tokens < most ? tokens : most;
}

void rope(const RopeArguments& a, Stream stream);

// Whether the kernels below take heads of so many channels: a lane of a warp has four neighbours,
// and those that turn with them are in the lane that differs in one bit, or its own.
constexpr bool fits_norm_rope(int64_t channels) {
  return channels >= 8 && channels <= 512 && (channels & (channels - 1)) == 0;
}
void norm_rope(const NormRopeArguments& a, void* queries, void* keys, double eps, Stream stream);
// `partials`: as of rms_norm_backward() for the rows of all queries, after them those of all keys;
// null where neither weight has a gradient.
void norm_rope_backward(const NormRopeArguments& a, const NormRopeGradients& queries,
                        const NormRopeGradients& keys, float* partials, Stream stream);

// y = the gate's function * up.
void gated(GateKind kind, Element type, MatrixView gate, MatrixView up, MatrixView y, int64_t rows,
           int64_t columns, Stream stream);
void gated_backward(GateKind kind, Element type, const GatedGradients& g, int64_t rows,
                    int64_t columns, Stream stream);

// SwiGLU's for dy times each row's weight, and the gradient of the weight.
void weighted_swiglu_backward(Element type, const GatedGradients& g, const RowWeights& weights,
                              int64_t rows, int64_t columns, Stream stream);

// Computes `pairs` of gate and up; backward turns them into their gradients.
void clamped_swiglu(Element type, const void* gate_up, void* y, int64_t pairs,
                    const ClampedGate& gate, Stream stream);
void clamped_swiglu_backward(Element type, void* gate_up, const void* dy, int64_t pairs,
                             const ClampedGate& gate, Stream stream);

// `place` and `weights` in device memory.
void row_sums(const RowSumsArguments& a, Stream stream);

// Logits of any element type, in `rows` that begin `stride` logits apart.
struct Logits {
  Element type;
  void* data;
  int64_t rows, vocabulary, stride;
};
// `targets` and `row` in device memory. Targets were checked.
void cross_entropy(const Logits& logits, const int64_t* targets, float scale, bool want_gradient,
                   const CrossEntropyOptions& options, CrossEntropyRow* row, Stream stream);

// An id outside the table gives a row of NaN: whoever knows the ids on the host checks them there.
void embedding(const void* weight, int64_t vocabulary, const int64_t* ids, void* y, int64_t tokens,
               int64_t row_bytes, Stream stream);
struct EmbeddingGradient {
  Element type;
  const void* dy;
  // Which tokens have which id: positions of tokens, and their ids, ascending and stable.
  const int64_t* sorted_ids;
  const int64_t* order;
  int64_t tokens, channels, vocabulary;
  Element dweight_type;
  void* dweight;
  bool add;
};
// Rows of ids that do not occur are left alone.
void embedding_backward(const EmbeddingGradient& g, Stream stream);

void dropout(const DropoutArguments& a, Stream stream);
void uniform_noise(const NoiseArguments& a, Stream stream);

struct AdamWArrays {
  float* param;
  const float* grad;
  float *exp_avg, *exp_avg_sq;
  int64_t n;
  RoundedCopy copy = {};  // of the new param
};
void adamw(const AdamWArrays& a, const AdamWFactors& factors, Stream stream);

// Partial sums of squares, to be added in their order: [square_sum_partials(n)].
void square_sum(Element type, const void* flat, int64_t n, double* partials, Stream stream);
inline int64_t square_sum_partials(int64_t n) {
  // Four loads of fp32 a thread; sixteen blocks a multiprocessor of an H100, two times what it
  // holds.
  constexpr int64_t kOfOne = 4096, kMost = 2112;
  const int64_t blocks = (n + kOfOne - 1) / kOfOne;
  return blocks < kMost ? blocks : kMost;
}

}  // namespace strata::ops::cuda

namespace strata::ops::quant::cuda {

using ops::cuda::Stream;

// A matrix of codes in device memory whose scales are fp32, or the first of several of one form.
struct MatrixCodes {
  bool is_int8;                     // signed bytes with a scale a row
  bool is_fp8;                      // a byte each with a scale a tile; else two elements a byte
  int block_shift;                  // log2 of the elements that share a scale, 5 or more; 4 bits
  int64_t tile_rows, tile_columns;  // fp8
  int64_t tiles_across;             // fp8: tiles of a row of them
  Element through;                  // fp8 and whole numbers: values are rounded to it
  int64_t rows, columns;            // both at most 2^31 - 2^11
  const uint8_t* codes;
  const float* scales;
  IntGroups ints;   // whole numbers, which have no `scales` but theirs
  float table[16];  // what 4-bit codes stand for
  // To the parts of the next matrix: from codes and the parts of whole numbers, in bytes; from
  // scales, in elements.
  int64_t bytes_apart = 0, scales_apart = 0;
};
// `count` matrices, one after the other in `out`. Requires for several: rows * columns is a
// multiple of 8.
void dequantize(const MatrixCodes& matrix, int64_t count, Element type, void* out, Stream stream);

// y [rows, matrix.rows] = x [rows, matrix.columns] W^T for few rows; the weight is decoded in
// registers, rounded to `type` as dequantize() would.
inline constexpr int64_t kMostRowsOfSmallProduct = 8;
struct SmallProduct {
  Element type;  // of x and y
  const void* x;
  int64_t x_stride;
  void* y;
  int64_t y_stride;
  int64_t rows;
  bool add;
};
void multiply_few_rows(const MatrixCodes& matrix, const SmallProduct& product, Stream stream);

// A matrix [rows, columns] in MXFP4, as cpu::Mxfp4Codes, or the first of several. Requires: codes
// at multiples of 16 bytes.
struct Mxfp4Codes {
  const uint8_t *codes, *scales;
  int64_t rows, columns;
  bool through_half;        // values are rounded to fp16 on the way
  int64_t bytes_apart = 0;  // to codes and scales of the next matrix
};
// `count` matrices, one after the other in `out`.
void decode_mxfp4(const Mxfp4Codes& matrix, int64_t count, Element type, void* out, Stream stream);

// Scales that are codes of the 8-bit dynamic map themselves: scale i is
// map[codes[i]] * scales[i / block] + *mean, two roundings; `map` [256], `mean` may be null.
struct NestedScales {
  const float* map;
  int64_t block;
  const uint8_t* codes;
  const float* scales;
  const float* mean;
  int64_t bytes_apart = 0;  // to each part of the next matrix; a multiple of 4
};
// `count` times n scales, one after the other in `out`.
void dequantize_dynamic(const NestedScales& nested, int64_t n, int64_t count, float* out,
                        Stream stream);
// The inverse without a mean: the nearest value of the map. NaN counts as nothing in the scale.
void quantize_dynamic(const float* map, bool is_signed, int64_t block, const float* x, int64_t n,
                      uint8_t* codes, float* scales, Stream stream);

// One AdamW update whose moments rest in 8 bits, blocks of kStateBlock elements.
struct AdamW8Bit {
  float* param;
  const float* grad;
  uint8_t* exp_avg;  // codes of the signed map
  float* exp_avg_scales;
  uint8_t* exp_avg_sq;  // codes of the unsigned map
  float* exp_avg_sq_scales;
  int64_t n;
  const float* signed_map;  // [256]
  const float* unsigned_map;
  RoundedCopy copy = {};  // of the new param
};
void adamw_8bit(const AdamW8Bit& a, const AdamWFactors& factors, Stream stream);

}  // namespace strata::ops::quant::cuda
