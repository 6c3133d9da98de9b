#include "strata/models/bert/model.h"

#include <cmath>
#include <map>

#include <ATen/ATen.h>
#include <fmt/format.h>

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

// Buffers of the first files, and what pretraining left that the reference does not read: a table
// of positions, DeBERTa-v3's tables before they were shared, ELECTRA's layer between tables and
// model where both have one width.
std::vector<std::string> ignored(const BertConfig& c) {
  std::vector<std::string> endings{"embeddings.position_ids"};
  if (!c.has_positions) endings.emplace_back("embeddings.position_embeddings.weight");
  if (c.names.body == "deberta") {
    endings.insert(endings.end(), {"embeddings.word_embeddings._weight",
                                   "embeddings.position_embeddings._weight"});
  }
  if (c.names.body == "electra" && !c.has_projection) {
    endings.insert(endings.end(),
                   {"electra.embeddings_project.weight", "electra.embeddings_project.bias"});
  }
  return endings;
}

}  // namespace

BertModel::BertModel(const BertConfig& config, at::ScalarType storage)
    : EncoderModel({.classifier = config.names.classifier,
                    .dense = {config.names.head_dense},
                    // Those that files lack are BERT's, DeBERTa's, ALBERT's.
                    .dense_ending = config.num_hidden_groups > 0 ? "pooler" : "pooler.dense",
                    .num_labels = config.num_labels,
                    .has_new_dense = config.has_new_dense,
                    .ignored_suffixes = ignored(config)}),
      config_(config),
      embeddings_(std::make_unique<BertEmbeddings>(config, storage)) {
  add_layers(storage);
  head_ = std::make_unique<BertHead>(config, storage);
}

void BertModel::add_layers(at::ScalarType storage) {
  const int64_t groups = config_.num_hidden_groups, of_group = config_.layers_of_group;
  std::map<std::string, BertLayer*> made;
  for (int64_t i = 0; i < config_.num_layers(); ++i) {
    std::string path = std::to_string(i);
    if (groups > 0) {
      // In doubles, as the reference.
      const double layers =
          static_cast<double>(config_.num_hidden_layers) / static_cast<double>(groups);
      const auto group = static_cast<int64_t>(static_cast<double>(i / of_group) / layers);
      path = fmt::format("{}.albert_layers.{}", group, i % of_group);
    }
    if (const auto layer = made.find(path); layer != made.end()) {
      layers_.push_back(std::make_unique<BertLayerAgain>(*layer->second, i));
      continue;
    }
    auto layer = std::make_unique<BertLayer>(config_, path, i, storage);
    made.emplace(std::move(path), layer.get());
    layers_.push_back(std::move(layer));
  }
}

std::vector<Block*> BertModel::blocks() { return chain_of(*embeddings_, layers_, *head_); }

// Tables of relative positions stand behind the layers.
size_t BertModel::module_place(const std::string& weight) const {
  const size_t body = weight.find(config_.names.body + ".");
  if (config_.has_head_first) return body != std::string::npos;
  if (!config_.relative_bias && !config_.relative_positions) return 0;
  if (body == std::string::npos) return 2;
  return weight.find(".encoder.") != std::string::npos &&
         weight.find("." + config_.names.layers + ".") == std::string::npos;
}

void BertModel::init_weight(const nn::Parameter& parameter, at::Tensor full,
                            at::Generator generator) const {
  const bool is_position = &parameter == embeddings_->positions();
  if (is_position && config_.has_sinusoidal_positions) return fill_with_waves(full);
  init_as_decoder(parameter, full, config_.initializer_range, std::move(generator));
  const bool has_padding =
      &parameter == &embeddings_->tokens() || (is_position && config_.counts_from_padding);
  if (has_padding && config_.pad_token_id) full.select(0, *config_.pad_token_id).zero_();
}

std::vector<std::string> BertModel::default_ia3_feedforward() const {
  return default_ia3_targets().empty() ? std::vector<std::string>{}
                                       : std::vector<std::string>{"output.dense"};
}

}  // namespace strata::models
