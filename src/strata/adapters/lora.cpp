#include "strata/adapters/lora.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/ranges.h>

#include "strata/adapters/lora_init.h"
#include "strata/adapters/module_match.h"
#include "strata/adapters/target_layers.h"
#include "strata/adapters/token_embedding.h"
#include "strata/base/error.h"
#include "strata/hf/adapter_files.h"
#include "strata/models/footprint.h"
#include "strata/models/vocabulary.h"

namespace strata::adapters {
namespace {

void check_options(const LoraOptions& options) {
  if (options.r < 1) {
    throw ConfigError("lora_r: found {}, expected at least 1; pass a positive rank", options.r);
  }
  for (const auto& [expression, rank] : options.rank_pattern) {
    if (rank >= 1) continue;
    throw ConfigError("rank_pattern: found {} for \"{}\", expected at least 1; correct it", rank,
                      expression);
  }
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    throw ConfigError("lora_dropout: found {}, expected 0 or more and less than 1; correct it",
                      options.dropout);
  }
  if (!std::isfinite(options.alpha)) {
    throw ConfigError("lora_alpha: found {}, expected a finite number; correct it", options.alpha);
  }
  if (options.target_pattern && !options.layers_to_transform.empty()) {
    throw ConfigError(
        "layers_to_transform: found beside target_modules \"{}\", expected a list of names there; "
        "name the layers in the expression or the modules in a list",
        *options.target_pattern);
  }
  if (!options.layers_pattern.empty() && options.layers_to_transform.empty()) {
    throw ConfigError(
        "layers_pattern: found without layers_to_transform, expected both; add or remove one");
  }
  if (options.lora_bias && options.use_dora) {
    throw ConfigError("lora_bias: found beside use_dora, expected one of them; remove one");
  }
  if (options.lora_bias && options.init != "true" && options.init != "false") {
    throw ConfigError(
        "lora_bias: found beside init_lora_weights \"{}\", expected true or false there; change "
        "one",
        options.init);
  }
}

void check_rank(const nn::Linear& layer, int64_t rank) {
  const int64_t most = std::min(layer.in_features(), layer.out_features());
  if (rank <= most) return;
  throw ConfigError(
      "lora_r: found {} for \"{}\" [{}, {}], expected at most {}; choose a smaller rank, or one "
      "for this layer with rank_pattern",
      rank, layer.path(), layer.out_features(), layer.in_features(), most);
}

void attach_branch(nn::Linear& layer, const LoraOptions& options, uint64_t layer_id) {
  const std::string base = hf::kAdapterKeyPrefix + layer.path();
  const int64_t rank = rank_of(options, layer.path());
  check_rank(layer, rank);
  const double r = static_cast<double>(rank);
  auto branch = std::unique_ptr<nn::LowRankBranch>(new nn::LowRankBranch{
      .a = {base + ".lora_A.weight", {rank, layer.in_features()}, at::kFloat},
      .b = {base + ".lora_B.weight", {layer.out_features(), rank}, at::kFloat},
      .scaling = alpha_of(options, layer.path()) / (options.use_rslora ? std::sqrt(r) : r),
      .dropout = options.dropout,
      .layer_id = layer_id});
  const auto vector = [&](const char* end) {
    return std::make_unique<nn::Parameter>(base + end, std::vector<int64_t>{layer.out_features()},
                                           at::kFloat);
  };
  if (options.lora_bias) branch->bias = vector(".lora_B.bias");
  if (options.use_dora) branch->magnitude = vector(".lora_magnitude_vector");
  layer.attach_low_rank(std::move(branch));
}

bool is_feedforward(const std::string& path, const LoraOptions& options,
                    const models::Model& model) {
  if (options.feedforward_pattern) return PathPattern(*options.feedforward_pattern).matches(path);
  const auto names = options.feedforward_modules.empty() ? model.default_ia3_feedforward()
                                                         : options.feedforward_modules;
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return path.ends_with(name); });
}

void attach_factors(nn::Linear& layer, const LoraOptions& options, const models::Model& model) {
  const bool of_input = is_feedforward(layer.path(), options, model);
  const std::vector<int64_t> shape = of_input ? std::vector<int64_t>{1, layer.in_features()}
                                              : std::vector<int64_t>{layer.out_features(), 1};
  const std::string name = hf::kAdapterKeyPrefix + layer.path() + ".ia3_l";
  layer.attach_rescale(std::unique_ptr<nn::Rescale>(
      new nn::Rescale{.factors = {name, shape, at::kFloat}, .of_input = of_input}));
}

// The base's biases that train, under the names that PEFT gives them.
std::vector<AdapterTensor> trained_biases(const LoraOptions& options, models::Model& model) {
  std::vector<AdapterTensor> tensors;
  for (models::Block* block : model.blocks()) {
    for (const nn::Linear* layer : block->linears()) {
      const bool is_wrapped = layer->low_rank() != nullptr;
      if (layer->bias() == nullptr || (options.bias == "lora_only" && !is_wrapped)) continue;
      const char* end = is_wrapped ? ".base_layer.bias" : ".bias";
      tensors.push_back({hf::kAdapterKeyPrefix + layer->path() + end, layer->bias()});
    }
  }
  return tensors;
}

std::string with_thousands(int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

}  // namespace

std::unique_ptr<LoraAdapter> attach_lora(models::Model& model, const LoraOptions& options) {
  check_options(options);
  check_init(options.init);
  const TargetLayers targets = find_targets(options, model);
  const auto saved = weights_to_save(options, model);

  for (nn::Parameter* parameter : model.parameters()) parameter->set_requires_grad(false);
  auto adapter = std::make_unique<LoraAdapter>();
  adapter->options_ = options;
  adapter->layers_ = targets.layers;
  adapter->saved_target_modules_ =
      targets.list.empty() ? std::vector<std::string>{*options.target_pattern} : targets.list;
  if (targets.embedding != nullptr) {
    attach_branch(*targets.embedding, options);
    adapter->embedding_ = targets.embedding;
    nn::EmbeddingBranch& branch = *targets.embedding->low_rank();
    adapter->tensors_ = {{branch.a.name(), &branch.a}, {branch.b.name(), &branch.b}};
  }
  for (size_t i = 0; i < targets.layers.size(); ++i) {
    nn::Linear& layer = *targets.layers[i];
    std::vector<nn::Parameter*> parameters;
    if (options.method == Method::kIa3) {
      attach_factors(layer, options, model);
      parameters.push_back(&layer.rescale()->factors);
    } else {
      attach_branch(layer, options, i);
      layer.low_rank()->append_parameters(parameters);
    }
    for (nn::Parameter* parameter : parameters) {
      adapter->tensors_.push_back({parameter->name(), parameter});
    }
  }
  if (options.bias != "none") {
    for (AdapterTensor& tensor : trained_biases(options, model)) {
      tensor.parameter->set_requires_grad(true);
      adapter->tensors_.push_back(std::move(tensor));
    }
  }
  const bool was_tied = is_tied(model);
  for (const std::string& name : saved) {
    if (stays_tied(options, model, name)) {
      adapter->train_as_one(model);
      continue;
    }
    adapter->tensors_.push_back({hf::kAdapterKeyPrefix + name, &model.trainable_copy(name)});
  }
  if (!options.trainable_tokens.empty()) {
    attach_token_rows(model, options);
    adapter->embedding_of_tokens_ = find_embedding(model);
    nn::Parameter& rows = adapter->embedding_of_tokens_->token_rows()->rows();
    adapter->tensors_.push_back({rows.name(), &rows});
  }
  const bool targets_head =
      std::any_of(targets.layers.begin(), targets.layers.end(),
                  [](const nn::Linear* layer) { return layer->path() == "lm_head"; });
  adapter->notes_ =
      notes_on_ties(options, targets.embedding != nullptr || targets_head, saved, was_tied);
  return adapter;
}

void LoraAdapter::train_as_one(models::Model& model) {
  for (const models::VocabularyWeight& weight : models::vocabulary_weights(model)) {
    if (!weight.parameter->requires_grad()) model.add_tied_copy(weight.parameter->numel());
    weight.parameter->set_requires_grad(true);
    add_once({hf::kAdapterKeyPrefix + weight.name, weight.parameter});
  }
}

void LoraAdapter::add_once(AdapterTensor tensor) {
  const bool is_there = std::any_of(tensors_.begin(), tensors_.end(),
                                    [&](const auto& other) { return other.name == tensor.name; });
  if (!is_there) tensors_.push_back(std::move(tensor));
}

void LoraAdapter::store_vocabulary(models::Model& model,
                                   const std::function<bool(const std::string&)>& is_wanted) {
  for (const models::VocabularyWeight& weight : models::vocabulary_weights(model)) {
    if (weight.parameter->quantization()) continue;
    const size_t dot = weight.name.rfind('.');
    const std::string path = weight.name.substr(0, dot);
    const std::string module = hf::kAdapterKeyPrefix + path;
    const auto is_layer = [&](const nn::Linear* layer) { return layer->path() == path; };
    const bool is_wrapped = std::any_of(layers_.begin(), layers_.end(), is_layer) ||
                            (embedding_ != nullptr && embedding_->path() == path);
    const bool has_rows =
        embedding_of_tokens_ != nullptr && weight.parameter == &embedding_of_tokens_->weight();
    const char* wrapper = is_wrapped ? ".base_layer" : has_rows ? ".token_adapter.base_layer" : "";
    const std::string name = module + wrapper + weight.name.substr(dot);
    if (is_wanted(name)) add_once({name, weight.parameter});
    // A tied output layer takes the same rows, and PEFT then saves them under its name too.
    const std::string rows = module + ".token_adapter.trainable_tokens_delta";
    if (has_rows && is_wanted(rows)) {
      add_once({rows, &embedding_of_tokens_->token_rows()->rows()});
    }
  }
}

void LoraAdapter::check_tensors(
    const std::vector<std::pair<std::string, std::vector<int64_t>>>& found,
    const std::string& file) const {
  std::map<std::string, std::vector<int64_t>> shapes(found.begin(), found.end());
  for (const AdapterTensor& tensor : tensors_) {
    const auto entry = shapes.find(tensor.name);
    if (entry == shapes.end()) {
      throw FormatError(
          "{}: found no tensor \"{}\", expected every weight that adapter_config.json "
          "implies; use the adapter with the model it was made for",
          file, tensor.name);
    }
    if (entry->second != tensor.parameter->shape()) {
      throw FormatError(
          "{}: tensor \"{}\" has shape [{}], adapter and base config imply [{}]; use "
          "the adapter with the model it was made for",
          file, tensor.name, fmt::join(entry->second, ", "),
          fmt::join(tensor.parameter->shape(), ", "));
    }
    shapes.erase(entry);
  }
  // PEFT adds the base's weight of a targeted embedding or output layer to the file.
  std::vector<std::string> targeted;
  for (const nn::Linear* layer : layers_) targeted.push_back(layer->path());
  if (embedding_ != nullptr) targeted.push_back(embedding_->path());
  for (const std::string& path : targeted) {
    const std::string base = hf::kAdapterKeyPrefix + path + ".base_layer.";
    std::erase_if(shapes, [&](const auto& found) { return found.first.starts_with(base); });
  }
  // And both copies of a module that is trained whole, when the vocabulary has grown.
  std::erase_if(shapes, [](const auto& found) {
    return found.first.find(".original_module.") != std::string::npos ||
           found.first.find(".modules_to_save.") != std::string::npos;
  });
  if (shapes.empty()) return;
  throw FormatError(
      "{}: found tensor \"{}\" that adapter_config.json does not imply, expected {} "
      "tensors; use the adapter_config.json that belongs to it",
      file, shapes.begin()->first, tensors_.size());
}

std::string trainable_parameters_line(models::Model& model) {
  int64_t trainable = 0, all = model.num_copied_elements();
  for (const nn::Parameter* parameter : model.parameters()) {
    all += models::counted_elements(*parameter);
    if (parameter->requires_grad()) trainable += parameter->numel();
  }
  return fmt::format("trainable params: {} || all params: {} || trainable%: {:.4f}",
                     with_thousands(trainable), with_thousands(all),
                     100.0 * static_cast<double>(trainable) / static_cast<double>(all));
}

}  // namespace strata::adapters
