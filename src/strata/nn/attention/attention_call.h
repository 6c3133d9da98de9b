// One call of attention: its options over the documents of a batch, and the products that
// every way of attending shares. Owns: the choice of the kernel, sinks, rotation in place. Never:
// autograd (attention.h, prefix_attention.h).
//
// T tokens; q [T, num_heads, D], k and v [T, num_kv_heads, D].
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/nn/attention/attention.h"
#include "strata/ops/attention/attention.h"
#include "strata/ops/attention/biased_attention.h"

namespace strata::nn {

struct AttentionCall {
  AttentionOptions options;
  std::vector<int64_t> offsets;  // of documents
  RopeTables tables;
  std::vector<int64_t> spans;  // of what sees each other: documents, or chunks of them
  at::Tensor token_keys = {};  // undefined: no dropout
  uint64_t dropout_key = 0;

  // Whether scores pass through more than a softmax.
  bool is_special() const {
    return token_keys.defined() || options.softcap > 0 || options.bias.defined();
  }

  // The options for either kind of operation. They view this call and must not outlive it.
  ops::AttentionOptions plain() const;
  ops::BiasedAttentionOptions special() const;

  AttentionCall(const AttentionOptions& options, std::vector<int64_t> offsets,
                const RopeTables& tables);

  // The call for documents with `count` more tokens at their front.
  AttentionCall with_front(int64_t count) const;
};

// Output and logarithms of the sums of each row.
ops::AttentionResult attend(const AttentionCall& call, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v);
// Given the same and their result; writes the gradient of the sinks where they train.
ops::AttentionGradients differentiate(const AttentionCall& call, const at::Tensor& dout,
                                      const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const ops::AttentionResult& forward);

// The bias of the call's heads.
at::Tensor own_bias(const AttentionOptions& o);

// The result where the softmax runs over the sinks as well; as it is without them.
ops::AttentionResult with_sinks(ops::AttentionResult result, const AttentionOptions& o);

// [T, heads * D] as [T, heads, D].
at::Tensor split_heads(const at::Tensor& x, int64_t heads, int64_t head_dim);

// The channels of each head that the tables are for; without tables none.
void rotate_(const at::Tensor& q, const at::Tensor& k, const RopeTables& tables, bool inverse);

}  // namespace strata::nn
