// What kernels of every device take: raw memory, sizes and type tags; arguments are checked before.
// Owns: those structures. Never: tensors, headers of a device.
//
// Strides are in elements.
#pragma once

#include <cstdint>

#include "strata/ops/element.h"

namespace strata::ops {

// Where values are written a second time, rounded to nearest; null: nowhere.
struct RoundedCopy {
  Element type = Element::kBFloat16;  // of 16 bits
  void* data = nullptr;
};

// A [rows, columns] matrix whose columns are contiguous.
struct MatrixView {
  void* data;
  int64_t stride;
};

// A [tokens, heads, channels] tensor whose channels are contiguous.
struct HeadsView {
  void* data;
  int64_t token_stride;
  int64_t head_stride;
  int64_t heads;
};

// Which channels of a head turn together: i of the first half with i of the second, or 2 i with the
// next.
enum class RopePairs { kHalves, kNeighbours };

struct RopeArguments {
  Element type;  // of x
  HeadsView x;   // [tokens, heads, 2 * half], turned in place
  const float* cos;
  const float* sin;  // [tokens, half]
  int64_t tokens, half;
  bool inverse;
  RopePairs pairs = RopePairs::kHalves;
};

// What y of a norm is, with n = x * rstd: weight * round(n), round(n * (1 + weight)) where the
// weight is kept as its distance from 1, or round(n * weight).
enum class RmsNormKind { kLlama, kGemma, kOlmo };

struct RmsNormArguments {
  Element type;         // of x, y, dy, dx, residual
  Element weight_type;  // of weight
  const void* x;
  const void* weight;
  float* rstd;
  int64_t tokens, channels;
  RmsNormKind kind = RmsNormKind::kLlama;
};

struct RmsNormGradients {
  const void* dy;
  const void* residual;  // may be null
  void* dx;              // on the CPU it may be dy
  void* dweight;         // may be null
  Element dweight_type;
  float beta;
};

// For ops/norm_rope.h: the heads of all tokens of one projection, each normalised by itself and
// turned as a whole.
struct NormRopeHeads {
  const void* x;  // [tokens, heads, channels]
  const void* weight;
  Element weight_type;
  float* rstd;  // [tokens, heads]
  int64_t heads;
};
struct NormRopeArguments {
  Element type;  // of x, y, dy, dx
  RmsNormKind kind;
  NormRopeHeads queries, keys;
  const float* cos;
  const float* sin;  // [tokens, channels / 2]
  int64_t tokens, channels;
};
struct NormRopeGradients {
  const void* dy;
  void* dx;
  void* dweight;  // may be null
  Element dweight_type;
  float beta;
};

// What a gate passes through: silu(x) = x * sigmoid(x), or GELU's approximation by tanh (Hendrycks
// and Gimpel 2016).
enum class GateKind { kSilu, kGeluTanh };

// Arguments of ops/clamped_swiglu.h.
struct ClampedGate {
  float alpha, limit;
};

// Arguments of ops/row_sums.h.
struct RowSumsArguments {
  Element type;
  const void* x;         // [rows, columns]
  const int64_t* place;  // [per_token, tokens]
  const float* weights;  // [tokens, per_token]; may be null
  void* y;               // [tokens, columns]
  int64_t tokens, per_token, columns;
};

struct GatedGradients {
  MatrixView dy, gate, up;
  MatrixView dgate, dup;  // may be gate and up
};

// Arguments for rows that are summed with weights, [rows] each.
struct RowWeights {
  const float* weight;
  float* gradient;
};

// What the loss is of, beside plain cross-entropy of the logits.
struct CrossEntropyOptions {
  // Logits become softcap * tanh(logit / softcap) (Gemma 2, Riviere et al. 2024); 0: they stay.
  float softcap = 0;
  // The share of the target that all tokens get alike (Szegedy et al. 2016); 0: none.
  float smoothing = 0;
};

struct CrossEntropyRow {
  float loss, entropy;
  int32_t correct, counted;
};

struct NoiseArguments {
  Element type;
  void* x;
  const int64_t* token_keys;
  int64_t tokens, channels;
  uint64_t key;
  float magnitude;
};

struct DropoutArguments {
  Element type;
  const void* x;
  void* y;
  const int64_t* token_keys;
  int64_t tokens, channels;
  uint64_t key;
  double p;
  bool add;  // y += instead of y =
};

}  // namespace strata::ops
