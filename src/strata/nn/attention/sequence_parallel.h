// Sequence parallelism: the ranks of a group share a micro-batch. Each has a part of its tokens,
// and all that layers do, they do to those alone; attention gets all tokens of a part of the heads.
// Owns: which tokens are a rank's, and the way from tokens to heads and back. Never: attention, who
// shares (comm/mesh.h).
// Source: DeepSpeed-Ulysses (Jacobs et al. 2023).
//
// P ranks, n tokens each; H heads of queries, K of keys and values, D channels a head. A rank's
// share is H / P and K / P heads, or one of keys and values where P / K ranks read the same.
#pragma once

#include <algorithm>
#include <string>

#include "strata/comm/group.h"
#include "strata/nn/batch.h"

namespace strata::nn {

// The tokens [rank * n, (rank + 1) * n) of `whole`, n = ceil(T / P). What is missing at the end is
// a document that nobody trains on. `sequence` must outlive the batch.
Batch part_of(const Batch& whole, comm::Group& sequence);

// "" or why the heads cannot be shared: what was found, what was expected.
std::string head_share_error(int64_t num_heads, int64_t num_kv_heads, int64_t ranks);

struct HeadShare {
  int64_t num_heads, num_kv_heads;  // of all ranks
  int64_t head_dim;
  comm::Group* sequence;

  int64_t own_heads() const { return num_heads / sequence->size(); }
  int64_t own_kv_heads() const { return std::max<int64_t>(1, num_kv_heads / sequence->size()); }
  int64_t first_head() const { return sequence->rank() * own_heads(); }
};

// All tokens of the rank's share, a fused projection [P * n, (H / P + 2 K / P) * D], from its own
// tokens of all heads: q [n, H * D], k and v [n, K * D]. With autograd. Collective, as is its
// backward.
at::Tensor to_own_heads(const HeadShare& share, const at::Tensor& q, const at::Tensor& k,
                        const at::Tensor& v);

// The same of a fused projection [n, (H + 2 K) * D]: all of q, then k, then v; `interleaved`: q, k
// and v of one head after the other.
at::Tensor to_own_heads(const HeadShare& share, const at::Tensor& qkv, bool interleaved);

// The rank's tokens of all heads, [n, H * D], from all tokens of its share, [P * n, H / P * D].
at::Tensor to_own_tokens(const HeadShare& share, const at::Tensor& x);

}  // namespace strata::nn
