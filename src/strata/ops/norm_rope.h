// RMSNorm of the heads of queries and keys and the rotation after it in one pass over both, as
// Qwen 3 and Gemma 3 have them. Every value is rounded where it is by rms_norm() and apply_rope_()
// one after the other. Owns: the check of the arguments and the choice of the device. Never:
// parameters, tables.
//
// T tokens; heads of D channels that turn as a whole, halves with halves.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "strata/ops/kernel_arguments.h"

namespace strata::ops {

struct TurnedHeads {
  at::Tensor y;     // [T, heads * D]
  at::Tensor rstd;  // fp32 [T * heads]
};

// Queries or keys: x [T, heads * D], contiguous, and the weight [D] of their norm.
struct HeadsToTurn {
  at::Tensor x;
  at::Tensor weight;
};

// Where the gradient of a weight goes: undefined, or [D], written (beta 0) or added to (beta 1).
struct HeadsGradient {
  at::Tensor dy;  // of y
  at::Tensor rstd;
  at::Tensor dweight;
  float beta = 0;
};

// Whether the device of x has norm_rope() of heads of so many channels.
bool can_norm_rope(const at::Tensor& x, int64_t channels);

struct TurnedQueriesAndKeys {
  TurnedHeads queries, keys;
};
// `cos`, `sin`: fp32 [T, D / 2]. Wrong shapes or types: InternalError.
TurnedQueriesAndKeys norm_rope(const HeadsToTurn& queries, const HeadsToTurn& keys,
                               const at::Tensor& cos, const at::Tensor& sin, double eps,
                               RmsNormKind kind);

struct QueriesAndKeys {
  at::Tensor queries, keys;
};
// The gradients of both x.
QueriesAndKeys norm_rope_backward(const HeadsToTurn& queries, const HeadsGradient& of_queries,
                                  const HeadsToTurn& keys, const HeadsGradient& of_keys,
                                  const at::Tensor& cos, const at::Tensor& sin, RmsNormKind kind);

}  // namespace strata::ops
