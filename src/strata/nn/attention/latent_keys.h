// Keys and values of all heads from what multi-head latent attention computes (DeepSeek-V2, 2024):
// each head's own channels, and channels with positions that all heads share. Owns: the autograd
// function that puts them beside each other. Never: projections, rotation, attention.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace strata::nn {

struct LatentHeads {
  int64_t num_heads = 0;
  int64_t plain_dim;   // channels of a key that its head alone has, the first ones
  int64_t turned_dim;  // channels of a key after them that all heads share
  int64_t value_dim;   // at most those of a key

  int64_t key_dim() const { return plain_dim + turned_dim; }
};

struct LatentKeys {
  at::Tensor keys;    // [T, num_heads * key_dim]
  at::Tensor values;  // the same; zeros after the value_dim channels of each head
};

// `heads` [T, num_heads * (plain_dim + value_dim)], key and value of one head after the other;
// `shared` [T, turned_dim], any strides. Both results are fresh. Memory: keeps nothing.
LatentKeys latent_keys(const at::Tensor& heads, const at::Tensor& shared, const LatentHeads& sizes);

}  // namespace strata::nn
