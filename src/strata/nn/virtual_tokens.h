// Trained rows that stand before every document: prompt tuning (Lester et al. 2021) puts them
// before the embedded tokens, prefix tuning (Li and Liang 2021) before the keys and values of every
// layer. Owns: what they do to a batch. Never: the embedding and attention that read them, first
// values (adapters/).
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"
#include "strata/nn/parameter.h"
#include "strata/nn/prefix_projection.h"

namespace strata::nn {

struct VirtualTokens {
  enum class Kind {
    kPrompt,  // values [V, hidden]
    kPrefix,  // values [V, layers * 2 * key-value width]: keys, then values, layer by layer
  };
  Kind kind;
  std::shared_ptr<Parameter> values;
  std::shared_ptr<PrefixProjection> projection = nullptr;  // of which `values` is the result
  int64_t count() const { return values->shape()[0]; }
};

// The batch as the blocks must see it. A prompt: V more tokens in front of every document, of which
// the last predicts the document's first token; a prefix: positions that start at V. Packed
// documents each get their own. Source: PEFT peft_model.py, PeftModelForCausalLM.forward.
Batch with_virtual_tokens(const Batch& batch, const VirtualTokens& tokens);

// Writes `prompt` [V, H] into the virtual rows of embedded tokens x [T, H], in the type of x.
void place_prompt_(at::Tensor x, const Batch& batch, const Parameter& prompt);
// Its gradient out of that of x.
void prompt_backward(const at::Tensor& dx, const Batch& batch, Parameter& prompt);

// One layer's keys or values of a prefix: columns [begin, begin + width) as [V, width].
at::Tensor prefix_columns(const Parameter& prefix, int64_t begin, int64_t width);
// Adds their gradient [V, width] to the prefix's.
void prefix_backward(const at::Tensor& gradient, int64_t begin, Parameter& prefix);

// Rows [T, W] of documents with `front` [V, W] before each: [T + D V, W]; and the other way round.
at::Tensor with_front(const at::Tensor& rows, const at::Tensor& front,
                      const std::vector<int64_t>& offsets);
struct Split {
  at::Tensor rows;   // [T, W]
  at::Tensor front;  // [V, W], summed over documents
};
Split split_front(const at::Tensor& all, int64_t count, const std::vector<int64_t>& offsets);
// Where documents start when `count` rows stand before each.
std::vector<int64_t> offsets_with_front(const std::vector<int64_t>& offsets, int64_t count);

}  // namespace strata::nn
