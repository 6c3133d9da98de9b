#include "strata/models/eurobert/model.h"

#include <ATen/ATen.h>

#include "strata/models/tied_decoder.h"
#include "strata/nn/activation.h"
#include "strata/nn/document_loss.h"

namespace strata::models {
namespace {

nn::Linear make_linear(const std::string& path, int64_t in, int64_t out, at::ScalarType storage) {
  return {path, {.in_features = in, .out_features = out, .bias = true, .storage = storage}};
}

}  // namespace

EuroBertHead::EuroBertHead(const EuroBertConfig& config, at::ScalarType storage)
    : pooling_(config.pooling),
      norm_(config.llama.final_norm, config.llama.hidden_size, config.llama.rms_norm_eps, storage,
            config.llama.norm_kind),
      dense_(make_linear("dense", config.llama.hidden_size, config.llama.hidden_size, storage)),
      classifier_(
          make_linear("classifier", config.llama.hidden_size, config.llama.num_labels, storage)) {}

std::vector<nn::Parameter*> EuroBertHead::parameters() {
  std::vector<nn::Parameter*> list{&norm_.weight()};
  dense_.append_parameters(list);
  classifier_.append_parameters(list);
  return list;
}

at::Tensor EuroBertHead::read(const at::Tensor& rows, const nn::ForwardContext& context) {
  const at::Tensor hidden =
      nn::activate(dense_.forward(rows, context), nn::Activation::kGelu).value;
  return classifier_.forward(hidden, context);
}

at::Tensor EuroBertHead::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  if (pooling_ == EuroBertPooling::kLate) {
    return nn::document_loss(nn::document_means(read(norm_.forward(x), context), context), context);
  }
  nn::Batch of_rows;
  of_rows.token_keys = nn::document_rows(context.batch->token_keys, context);
  nn::ForwardContext own = context;
  own.batch = &of_rows;
  const at::Tensor rows = pooling_ == EuroBertPooling::kMean
                              ? nn::document_means(norm_.forward(x), context)
                              : norm_.forward(nn::document_rows(x, context));
  return nn::document_loss(read(rows, own), context);
}

at::Tensor EuroBertHead::logits(const at::Tensor& x) {
  return read(norm_.forward(x), nn::ForwardContext{}).to(at::kFloat);
}

EuroBertModel::EuroBertModel(const EuroBertConfig& config, at::ScalarType storage)
    : EncoderModel({.classifier = "classifier",
                    .dense = {"dense"},
                    .dense_ending = "dense",
                    .num_labels = config.llama.num_labels,
                    .has_new_dense = config.has_new_dense}),
      config_(config),
      rope_(config.llama.rope),
      embedding_(std::make_unique<LlamaEmbedding>(config.llama, storage)) {
  for (int64_t i = 0; i < config.llama.num_hidden_layers; ++i) {
    layers_.push_back(std::make_unique<LlamaDecoderLayer>(config.llama, i, storage, rope_));
  }
  head_ = std::make_unique<EuroBertHead>(config, storage);
}

std::vector<Block*> EuroBertModel::blocks() { return chain_of(*embedding_, layers_, *head_); }

void EuroBertModel::init_weight(const nn::Parameter& parameter, at::Tensor full,
                                at::Generator generator) const {
  init_as_decoder(parameter, full, config_.llama.initializer_range, std::move(generator));
  const bool is_table = &parameter == embedding_->weight().get();
  if (is_table && config_.llama.pad_token_id) {
    full.select(0, *config_.llama.pad_token_id).zero_();
  }
}

}  // namespace strata::models
