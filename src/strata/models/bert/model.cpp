#include "strata/models/bert/model.h"

#include <cmath>

#include <ATen/ATen.h>

#include "strata/models/tied_decoder.h"

namespace strata::models {
namespace {

// As Vaswani et al. 2017: the sine of even channels, the cosine of odd ones.
void fill_with_waves(at::Tensor table) {
  const int64_t channels = table.size(1);
  const auto options = table.options().dtype(at::kDouble);
  const at::Tensor channel = at::arange(channels, options).div(2, "floor").mul(2.0 / channels);
  const at::Tensor angles =
      at::arange(table.size(0), options).unsqueeze(1) / at::pow(at::Scalar(10000.0), channel);
  const at::Tensor is_even = at::arange(channels, table.options().dtype(at::kLong)) % 2 == 0;
  table.copy_(at::where(is_even, angles.sin(), angles.cos()));
}

}  // namespace

BertModel::BertModel(const BertConfig& config, at::ScalarType storage)
    : EncoderModel({.classifier = config.names.classifier,
                    .dense = {config.names.head_dense},
                    .dense_ending = "pooler.dense",  // the one that files lack is BERT's
                    .num_labels = config.num_labels,
                    .has_new_dense = config.has_new_dense,
                    .ignored_suffixes = {"embeddings.position_ids"}}),
      config_(config),
      embeddings_(std::make_unique<BertEmbeddings>(config, storage)) {
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(std::make_unique<BertLayer>(config, i, storage));
  }
  head_ = std::make_unique<BertHead>(config, storage);
}

std::vector<Block*> BertModel::blocks() { return chain_of(*embeddings_, layers_, *head_); }

size_t BertModel::module_place(const std::string& weight) const {
  return config_.has_head_first && weight.find(config_.names.body + ".") != std::string::npos;
}

void BertModel::init_weight(const nn::Parameter& parameter, at::Tensor full,
                            at::Generator generator) const {
  const bool is_position = &parameter == &embeddings_->positions();
  if (is_position && config_.has_sinusoidal_positions) return fill_with_waves(full);
  init_as_decoder(parameter, full, config_.initializer_range, std::move(generator));
  const bool has_padding =
      &parameter == &embeddings_->tokens() || (is_position && config_.counts_from_padding);
  if (has_padding && config_.pad_token_id) full.select(0, *config_.pad_token_id).zero_();
}

std::vector<std::string> BertModel::default_lora_targets() const {
  if (config_.names.body == "distilbert") return {};
  return {"query", "value"};
}

std::vector<std::string> BertModel::default_ia3_targets() const {
  if (config_.names.architecture.starts_with("XLM") || config_.names.body == "distilbert") {
    return {};
  }
  return {"key", "value", "output.dense"};
}

std::vector<std::string> BertModel::default_ia3_feedforward() const {
  return default_ia3_targets().empty() ? std::vector<std::string>{}
                                       : std::vector<std::string>{"output.dense"};
}

}  // namespace strata::models
