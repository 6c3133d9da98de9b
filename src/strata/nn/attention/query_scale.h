// Queries that grow with their position, so that scores over long texts stay sharp: 1 + beta *
// log(1 + floor((position + first) / length)) times what the projection gives. Owns: that factor.
// Never: the scale of all scores (AttentionOptions::scale).
//
// Source: transformers modeling_ministral3.py (get_llama_4_attn_scale), modeling_llama4.py.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"

namespace strata::nn {

struct QueryScale {
  double beta;
  int64_t length;              // positions up to the first that grows
  int64_t first = 0;           // of a text's first token
  bool rounds_factor = false;  // to the type of q, before the product and after it
};

// q [T, channels] of the batch's tokens, times the factor of each; q itself where no text reaches
// that length. `num_before`: virtual tokens that take the first positions of every text.
at::Tensor scaled_by_position(const at::Tensor& q, const QueryScale& scale, int64_t num_before,
                              const ForwardContext& context);

}  // namespace strata::nn
