// Attention to a prefix (nn/virtual_tokens.h) and to the documents after it. Owns: the autograd
// function, which writes the prefix's gradient, and how a cache begins.
#pragma once

#include <ATen/core/Tensor.h>

#include "strata/nn/attention/attention_call.h"
#include "strata/nn/attention/kept_attention.h"
#include "strata/nn/attention/kv_cache.h"

namespace strata::nn {

// As attention(), each document after the prefix of call.options; q, k and v [T, heads * D].
at::Tensor prefix_attention(const AttentionCall& call, KeptAttention* kept, const at::Tensor& q,
                            const at::Tensor& k, const at::Tensor& v);

// An empty cache starts with the prefix, in the type of `like`. The caller has counted it already
// (KvCache::length).
void put_prefix(const AttentionOptions& o, const at::Tensor& like, KvCache& cache);

}  // namespace strata::nn
