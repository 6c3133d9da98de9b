// Keys and values of the tokens generated so far. Owns: one preallocated buffer per layer. Never:
// projections or RoPE; keys are stored as attention reads them.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace strata::nn {

// One document. Use: forward of Tq tokens writes positions length .. length + Tq of every layer,
// then the caller adds Tq to `length` (once, after the last layer).
struct KvCache {
  struct Layer {
    at::Tensor keys;    // [capacity, Hkv, D], allocated at the first use
    at::Tensor values;  // [capacity, Hkv, D]
    // For linear attention instead: its state, and the inputs that its convolution still needs.
    at::Tensor state, last_inputs;
  };
  // Whether a layer holds a state, which stands for all tokens so far and for no fewer.
  bool has_states() const;
  void forget_states();

  KvCache(int64_t num_layers, int64_t capacity) : capacity(capacity), layers(num_layers) {}

  int64_t capacity;
  int64_t length = 0;
  // Length of the text being computed, including parts to come; Rope::tables() reads it.
  int64_t text_length = 0;
  // RopeOptions::length_of_change(), which attention writes here: keys of a text up to this length
  // are not those of a longer one.
  int64_t length_of_change = 0;
  // The keys of a longer text change with each token (dynamic). A text keeps its keys while an
  // answer makes it longer, as in the reference; the next one has its own.
  bool changes_with_length = false;
  std::vector<Layer> layers;
};

struct KeysValues {
  at::Tensor keys;  // [length + Tq, Hkv, D]
  at::Tensor values;
};

// Writes k, v [Tq, Hkv, D] after the cached ones and returns views of all. A full cache:
// ConfigError naming the capacity.
KeysValues extend_cache(KvCache& cache, int64_t layer, const at::Tensor& k, const at::Tensor& v);

// The keys and values of a layer that has already written `added` tokens in this forward pass.
KeysValues read_cache(const KvCache& cache, int64_t layer, int64_t added);

}  // namespace strata::nn
