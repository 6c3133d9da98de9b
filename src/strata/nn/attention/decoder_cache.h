// What the decoder of an encoder-decoder model need not compute again for the next token: keys and
// values of its own earlier tokens and of the encoder's output. Owns: tensors. Never: projections.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace strata::nn {

// D documents of one length. Use: a forward of one token of each document adds it to every layer,
// then the caller adds 1 to `length` (once, after the last layer).
struct DecoderCache {
  struct Layer {
    at::Tensor keys, values;                // [D, length, H, C]; undefined before the first token
    at::Tensor source_keys, source_values;  // [S, H, C]; undefined before the first token
  };
  explicit DecoderCache(int64_t num_layers) : layers(static_cast<size_t>(num_layers)) {}

  int64_t length = 0;
  // int64 [D]: the document whose earlier tokens each one goes on from; undefined: its own. Those
  // that read one source stay side by side.
  at::Tensor parents = {};
  std::vector<Layer> layers;
};

}  // namespace strata::nn
