// DeBERTa's attention (He et al. 2021): scores of queries with keys, of queries with the vectors of
// relative positions as keys, of keys with those as queries. Owns: which vector a distance has,
// attention and its backward over ops/attention/biased_attention.h. Never: projections.
// Source: transformers modeling_deberta_v2.py, make_log_bucket_position.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "strata/nn/attention/biased_attention.h"

namespace strata::nn {

// Distances have a vector each up to half of `buckets`, then fewer and fewer of them, up to
// `max_distance`; with no buckets each has one, up to there.
struct PositionVectors {
  int64_t buckets = 0;
  int64_t max_distance = 512;

  // Of vectors of each direction; the table has twice as many rows.
  int64_t span() const { return buckets > 0 ? buckets : max_distance; }
};

// int64 [2 reach + 1] on the CPU: rows of the table for keys at -reach .. reach from their query.
at::Tensor position_rows(int64_t reach, const PositionVectors& vectors);

// q, k and v [T, H * C] -> [T, H * C]. `key_vectors` and `query_vectors` [2 span, H * C]: of the
// table, as keys and as queries; undefined: none. `shape.key_offsets` are those of q.
at::Tensor disentangled_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const at::Tensor& key_vectors, const at::Tensor& query_vectors,
                                  const PositionVectors& vectors, const BiasedAttentionShape& shape,
                                  const ForwardContext& context);

}  // namespace strata::nn
