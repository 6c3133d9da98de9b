// The CPU kernels of all ops on raw memory; arguments are checked before. cuda_kernels.h is the
// same list for NVIDIA GPUs, and the ops choose at run time. Owns: declarations. Never: tensors.
//
// Strides are in elements. Threads: every kernel splits its work with at::parallel_for into pieces
// whose results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <span>

#include "strata/ops/kernel_arguments.h"

namespace strata::ops {

struct AdamWStep;

namespace quant::cpu {
struct MatrixCodes;
}

}  // namespace strata::ops

namespace strata::ops::cpu {

void rms_norm(const RmsNormArguments& a, void* y, double eps);
void rms_norm_backward(const RmsNormArguments& a, const RmsNormGradients& g);

struct LayerNormArguments {
  Element type, weight_type;
  const void* x;
  const void* weight;
  int64_t tokens, channels;
};
struct LayerNormOutputs {
  Element bias_type;
  const void* bias;
  double eps;
  void* y;
  float* mean;
  float* rstd;
};
void layer_norm(const LayerNormArguments& a, const LayerNormOutputs& out);
// Where a sum over tokens goes; null: nowhere. beta 0 or 1 as in ops/layer_norm.h.
struct LayerNormSum {
  Element type = Element::kFloat;
  void* data = nullptr;
  float beta = 0;
};
struct LayerNormGradients {
  const void* dy;
  const void* residual;  // added to dx; may be null
  const float* mean;
  const float* rstd;
  void* dx;
  LayerNormSum dweight, dbias;
};
void layer_norm_backward(const LayerNormArguments& a, const LayerNormGradients& g);

void rope(const RopeArguments& a);

void norm_rope(const NormRopeArguments& a, void* queries, void* keys, double eps);
void norm_rope_backward(const NormRopeArguments& a, const NormRopeGradients& queries,
                        const NormRopeGradients& keys);

// y = the gate's function * up.
void gated(GateKind kind, Element type, MatrixView gate, MatrixView up, MatrixView y, int64_t rows,
           int64_t columns);
void gated_backward(GateKind kind, Element type, const GatedGradients& g, int64_t rows,
                    int64_t columns);

// SwiGLU's gradients for dy times each row's weight, and that of the weight.
void weighted_swiglu_backward(Element type, const GatedGradients& g, const RowWeights& weights,
                              int64_t rows, int64_t columns);

// Computes `pairs` of gate and up; backward turns them into their gradients.
void clamped_swiglu(Element type, const void* gate_up, void* y, int64_t pairs,
                    const ClampedGate& gate);
void clamped_swiglu_backward(Element type, void* gate_up, const void* dy, int64_t pairs,
                             const ClampedGate& gate);

void row_sums(const RowSumsArguments& a);

struct AttentionArguments {
  Element type;
  HeadsView q, k, v;
  int64_t channels;  // D
  std::span<const int64_t> offsets;
  float scale;
  float* lse;      // [Hq, tokens]; may be null in attention()
  int64_t tokens;  // of q
  // Queries are the last ones of the keys' positions: key j is seen by query i when
  // j <= i + key_lead, both counted in their document. 0 except with a cache.
  int64_t key_lead = 0;
  bool causal = true;  // false: every query sees all keys of its document
  // So many keys up to its own place, and not causal so many from there on; 0: all.
  int64_t window = 0;
  // Documents of k and v where they are not those of q; empty: key_lead more than those of q.
  std::span<const int64_t> key_offsets = {};
  // Added to the scores: fp32 [Hq, bias_span], of key j and query i at bias_origin + j - i -
  // key_lead. null: nothing.
  const float* bias = nullptr;
  int64_t bias_span = 0, bias_origin = 0;
  // Vectors of relative positions that queries, and keys, have products with beside each other's:
  // [position_span, Hq, D] of the type of q, of key j and query i at position_span / 2 + j - i -
  // key_lead. data of null: none. With a kv head for each head of q.
  HeadsView key_positions = {}, query_positions = {};
  int64_t position_span = 0;
  bool has_positions() const {
    return key_positions.data != nullptr || query_positions.data != nullptr;
  }
  // Dropout of probabilities; masks depend on the query's token key, the head and the key's place.
  double dropout = 0;
  uint64_t dropout_key = 0;
  const int64_t* token_keys = nullptr;  // [tokens], with dropout
  // Scores become softcap * tanh(score / softcap), before the bias; 0: they stay.
  float softcap = 0;
};
void attention(const AttentionArguments& a, HeadsView out);
struct AttentionGradientViews {
  HeadsView dout, out, dq, dk, dv;
  float* dbias = nullptr;  // [documents, Hq, bias_span]: added to; may be null
  // Of vectors of positions, added to: [position_pieces, Hq, position_span, padded D], those of
  // queries without the scale. Documents are summed up in so many pieces.
  float *dkey_positions = nullptr, *dquery_positions = nullptr;
  int64_t position_pieces = 0;
};
void attention_backward(const AttentionArguments& a, const AttentionGradientViews& g);

struct MatmulFactor {
  const void* data;
  int64_t stride;  // of the rows in memory
  bool transposed;
};
struct MatmulArguments {
  int64_t rows, columns, inner;
  Element type;  // of a and b
  MatmulFactor a, b;
  Element c_type;
  MatrixView c;
  bool add;
  // b as codes instead of data; its rows are `b.stride` elements.
  const quant::cpu::MatrixCodes* b_codes = nullptr;
};
void matmul(const MatmulArguments& m);
// The same for one row of bf16 into bf16, where a is not transposed and b is: without packing.
void multiply_row_by_columns(const MatmulArguments& m);
// Up to so many rows one factor is packed range by range, as it is multiplied: the least memory.
inline constexpr int64_t kRowsOfOneBlock = 96;
// See ops/matmul/matmul.h.
int64_t matmul_scratch_bytes(int64_t rows, int64_t columns, int64_t inner, Element type,
                             Element c_type);

// Fills `row` for each row; `logits` become gradients where asked.
void cross_entropy(float* logits, const int64_t* targets, int64_t rows, int64_t vocabulary,
                   float scale, bool want_gradient, const CrossEntropyOptions& options,
                   CrossEntropyRow* row);

void embedding(const void* weight, const int64_t* ids, void* y, int64_t tokens, int64_t row_bytes);
void embedding_backward(Element type, const void* dy, const int64_t* ids, int64_t tokens,
                        int64_t channels, Element dweight_type, void* dweight, bool add);

void dropout(const DropoutArguments& a);
void uniform_noise(const NoiseArguments& a);

// The mask of one token: the 64 bits that its channels' hashes start from, and what they are
// compared with.
struct DropoutRow {
  DropoutRow(double p, uint64_t key, int64_t token_key);
  // y = x where channels first .. first + n are kept, scaled, else 0. x may be y.
  void apply(const float* x, float* y, int64_t n, int64_t first = 0) const;

 private:
  uint32_t low_, high_, threshold_;
  float factor_;
};

// `copy`: bf16 [n]; may be null.
void adamw(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, int64_t n,
           const AdamWStep& options, uint16_t* copy);

double square_sum(Element type, const void* flat, int64_t n);

}  // namespace strata::ops::cpu
