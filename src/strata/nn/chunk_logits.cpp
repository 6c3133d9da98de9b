#include "strata/nn/chunk_logits.h"

#include <ATen/ATen.h>

#include "strata/nn/rescale.h"

namespace strata::nn {

ChunkLogits chunk_logits(const OutputLayer& layer, const at::Tensor& h, const DropoutDraw& draw,
                         at::Tensor buffer, bool want_gradient) {
  const Linear& output = *layer.linear;
  ChunkLogits result{.logits = buffer, .hidden = {}, .dora = {}, .unscaled = {}};
  if (output.is_dora()) {
    buffer.zero_();
    result.dora =
        dora_forward_(buffer, h, output.weight(), *output.low_rank(),
                      {.draw = draw, .purpose = layer.purpose, .norms = layer.dora_norms});
  } else {
    forward_product_into(buffer, h, output.weight(), /*beta=*/0, layer.purpose);
    if (output.token_rows()) output.token_rows()->replace_logits(h, buffer);
  }
  if (output.bias() != nullptr) buffer.add_(output.bias()->value());
  if (output.low_rank() != nullptr && !output.is_dora()) {
    result.hidden = low_rank_forward_(buffer, h, *output.low_rank(), draw);
  }
  if (output.vera() != nullptr) result.hidden = vera_forward_(buffer, h, *output.vera(), draw);
  if (output.rescale() != nullptr && !output.rescale()->of_input) {
    if (want_gradient) result.unscaled = buffer.clone();
    buffer.copy_(rescaled(buffer, *output.rescale()));
  }
  return result;
}

void chunk_backward(const OutputLayer& layer, const at::Tensor& h, const ChunkLogits& result,
                    const DropoutDraw& draw, at::Tensor dh) {
  const Linear& output = *layer.linear;
  at::Tensor dlogits = result.logits;
  if (result.unscaled.defined()) {
    dlogits = rescale_backward(dlogits, result.unscaled, *output.rescale());
  }
  if (output.weight().requires_grad()) output.weight().accumulate_grad_product(dlogits, h);
  if (output.bias() != nullptr && output.bias()->requires_grad()) {
    output.bias()->accumulate_grad(dlogits.sum(at::IntArrayRef{0}, /*keepdim=*/false, at::kFloat));
  }
  if (output.is_dora()) {
    dora_backward(dlogits, h, result.dora, output.weight(), *output.low_rank(), draw, dh,
                  /*beta=*/0);
    return;
  }
  if (output.token_rows()) {
    dh.zero_();
    output.token_rows()->replace_logits_backward(h, dlogits, dh);
  }
  multiply_by_weight_back_into(dh, dlogits, output.weight(), output.token_rows() ? 1 : 0);
  if (output.low_rank() != nullptr) {
    low_rank_backward(dlogits, {h, result.hidden}, *output.low_rank(), draw, dh);
  }
  if (output.vera() != nullptr) vera_backward(dlogits, result.hidden, *output.vera(), draw, dh);
}

}  // namespace strata::nn
