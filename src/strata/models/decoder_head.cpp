#include "strata/models/decoder_head.h"

#include <ATen/ATen.h>

#include "strata/models/reward_head.h"
#include "strata/nn/chunked_cross_entropy.h"
#include "strata/nn/document_loss.h"

namespace strata::models {
namespace {

nn::Linear make_output_layer(const DecoderHeadOptions& o, at::ScalarType storage,
                             std::shared_ptr<nn::Parameter> tied) {
  const int64_t size = o.output_size;
  if (o.num_labels > 0) {
    return nn::Linear(kRewardLayer,
                      {.in_features = size, .out_features = o.num_labels, .storage = storage});
  }
  if (tied != nullptr) return nn::Linear("lm_head", std::move(tied));
  return nn::Linear(
      "lm_head",
      {.in_features = size, .out_features = o.vocab_size, .bias = o.has_bias, .storage = storage});
}

}  // namespace

DecoderHead::DecoderHead(const DecoderHeadOptions& o, at::ScalarType storage,
                         std::shared_ptr<nn::Parameter> tied)
    : output_(make_output_layer(o, storage, std::move(tied))), logit_scale_(o.logit_scale) {
  if (!o.norm_path.empty()) {
    norm_.emplace(o.norm_path, o.hidden_size, o.norm_eps, storage, o.norm_affine);
  }
  if (!o.projection_path.empty()) {
    projection_.emplace(o.projection_path, nn::Linear::Options{.in_features = o.hidden_size,
                                                               .out_features = o.output_size,
                                                               .storage = storage});
  }
}

std::vector<nn::Linear*> DecoderHead::linears() {
  std::vector<nn::Linear*> list;
  if (projection_) list.push_back(&*projection_);
  list.push_back(&output_);
  return list;
}

std::vector<nn::Parameter*> DecoderHead::parameters() {
  std::vector<nn::Parameter*> list;
  if (projection_) projection_->append_parameters(list);
  if (norm_) norm_->append_parameters(list);
  output_.append_parameters(list);
  return list;
}

at::Tensor DecoderHead::prepared(const at::Tensor& x, const nn::ForwardContext& context) {
  const at::Tensor rows = norm_ ? norm_->forward(x) : x;
  const at::Tensor read = projection_ ? projection_->forward(rows, context) : rows;
  return logit_scale_ == 1 ? read : read * logit_scale_;
}

at::Tensor DecoderHead::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  if (output_.path() == kRewardLayer) {
    const at::Tensor rows = prepared(nn::document_rows(x, context), context);
    return nn::document_loss(output_.forward(rows, context), context);
  }
  return nn::chunked_cross_entropy(prepared(x, context), output_, context);
}

at::Tensor DecoderHead::logits(const at::Tensor& x) {
  const at::Tensor rows = prepared(x, nn::ForwardContext{});
  at::Tensor logits = output_.forward(rows, nn::ForwardContext{}).to(at::kFloat);
  if (output_.token_rows()) output_.token_rows()->replace_logits(rows, logits);
  return logits;
}

}  // namespace strata::models
