#include "strata/models/bert/model.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <ATen/ATen.h>

#include "strata/hf/adapter_files.h"
#include "strata/hf/model_folder.h"
#include "strata/models/registry.h"
#include "strata/models/reward_head.h"
#include "strata/models/tied_decoder.h"
#include "strata/models/weight_check.h"

namespace strata::models {
namespace {

// A buffer of old files.
constexpr std::string_view kPositionIds = "embeddings.position_ids";

bool is_of(const std::string& module, const std::string& weight) {
  return weight.starts_with(module + ".");
}

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
    : config_(config), embeddings_(std::make_unique<BertEmbeddings>(config, storage)) {
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(std::make_unique<BertLayer>(config, i, storage));
  }
  head_ = std::make_unique<BertHead>(config, storage);
}

std::vector<Block*> BertModel::blocks() { return chain_of(*embeddings_, layers_, *head_); }

size_t BertModel::module_place(const std::string& weight) const {
  return config_.has_head_first && weight.find(config_.names.body + ".") != std::string::npos;
}

bool BertModel::is_of_document_head(const std::string& weight) const {
  return is_of(config_.names.classifier, weight) ||
         (config_.has_new_dense && is_of(config_.names.head_dense, weight));
}

// BERT's first layer of the head, where it begins anew: what is drawn becomes no codes.
std::vector<std::string> BertModel::never_quantized() const {
  return config_.has_new_dense ? std::vector<std::string>{"pooler.dense"}
                               : std::vector<std::string>{};
}

bool BertModel::ignores(const std::string& tensor) const {
  return tensor.ends_with(kPositionIds) || is_of_other_head(tensor);
}

WeightSources BertModel::check_weights(const hf::ModelFolder& folder) {
  const bool starts_head = lacks_head(folder, config_.num_labels);
  const bool starts_dense = starts_head && lacks_head_dense(folder);
  std::vector<ExpectedWeight> expected;
  for (const nn::Parameter* parameter : parameters()) {
    const std::string& name = parameter->name();
    if (name.starts_with(hf::kAdapterKeyPrefix)) continue;
    if (starts_head && is_of(config_.names.classifier, name)) continue;
    if (starts_dense && is_of(config_.names.head_dense, name)) continue;
    expected.push_back({parameter, {name}});
  }
  std::vector<std::string> heads = other_heads();
  if (starts_head) heads.emplace_back("classifier.");
  return match_weights(folder, expected, {std::string(kPositionIds)}, heads);
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
