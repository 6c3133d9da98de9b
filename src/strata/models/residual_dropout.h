// What a layer adds to the residual stream, with dropout before the sum. Owns: that sum, and by
// which numbers the places of dropout in a model are known. Never: dropout itself (nn/dropout.h).
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"
#include "strata/nn/linear.h"

namespace strata::models {

// Places of dropout (nn/dropout.h), beside those of the adapters' layers, which count from 0.
inline constexpr uint64_t kFirstDropoutPlace = uint64_t{1} << 32;

// Places in a layer; the first place of all is the embedding's.
enum class DropoutPlace { kScores, kAttention, kMlp, kCount };
uint64_t dropout_place_id(int64_t layer, DropoutPlace place);

struct ResidualDropout {
  double rate;
  uint64_t place_id;
  bool is_last;  // nothing but the end of its block reads the sum, nn::Linear::forward_add_last
};

// residual + dropout(layer(x)).
at::Tensor add_with_dropout(const nn::Linear& layer, const nn::Remakable& x,
                            const at::Tensor& residual, const ResidualDropout& dropout,
                            const nn::ForwardContext& context);

}  // namespace strata::models
