#include "strata/adapters/lora.h"

#include <algorithm>
#include <map>

#include <fmt/ranges.h>

#include "strata/adapters/expert_targets.h"
#include "strata/adapters/lora_init.h"
#include "strata/adapters/module_match.h"
#include "strata/adapters/target_layers.h"
#include "strata/adapters/target_parameters.h"
#include "strata/adapters/token_embedding.h"
#include "strata/adapters/vera.h"
#include "strata/base/error.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/module_pattern.h"
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
  if (options.loftq_bits != 4 && options.loftq_bits != 8) {
    throw ConfigError("loftq_bits: found {}, expected 4 or 8; choose one", options.loftq_bits);
  }
  if (options.loftq_iter < 1) {
    throw ConfigError("loftq_iter: found {}, expected at least 1; choose 1", options.loftq_iter);
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

int64_t most_rank(const nn::Linear& layer) {
  return std::min(layer.in_features(), layer.out_features());
}

// Beside larger layers a narrow one (a router, say) may have a rank beyond its own.
void check_rank(const nn::Linear& layer, int64_t rank, int64_t most_of_all) {
  const int64_t most = most_rank(layer);
  if (rank <= most || rank <= most_of_all) return;
  throw ConfigError(
      "lora_r: found {} for \"{}\" [{}, {}], expected at most {}; choose a smaller rank, or one "
      "for this layer with rank_pattern",
      rank, layer.path(), layer.out_features(), layer.in_features(), most);
}

// Of some of them PEFT makes something else here.
void check_conv1d(const nn::Linear& layer, const LoraOptions& options) {
  if (!layer.weight().is_transposed() || !changes_base(options)) return;
  throw ConfigError(
      "init_lora_weights: found {} for \"{}\", whose file holds it as [in, out] (GPT-2's Conv1D), "
      "expected true, false, gaussian or orthogonal there; choose one of them",
      options.init, layer.path());
}

// The largest rank of any of the layers, where first values are drawn for any rank.
int64_t most_rank(const std::vector<nn::Linear*>& layers, const LoraOptions& options) {
  int64_t most = 0;
  if (options.init != "true" && options.init != "false" && options.init != "gaussian") return most;
  for (const nn::Linear* layer : layers) most = std::max(most, most_rank(*layer));
  return most;
}

void attach_branch(nn::Linear& layer, const LoraOptions& options, uint64_t layer_id,
                   int64_t most_of_all) {
  check_conv1d(layer, options);
  const std::string base = hf::kAdapterKeyPrefix + layer.path();
  const int64_t rank = rank_of(options, layer.path());
  check_rank(layer, rank, most_of_all);
  auto branch = std::unique_ptr<nn::LowRankBranch>(new nn::LowRankBranch{
      .a = {base + ".lora_A.weight", {rank, layer.in_features()}, at::kFloat},
      .b = {base + ".lora_B.weight", {layer.out_features(), rank}, at::kFloat},
      .scaling = scaling_of(options, layer.path(), rank),
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

void attach_vectors(nn::Linear& layer, const LoraOptions& options, uint64_t layer_id,
                    std::shared_ptr<nn::VeraProjection> projection) {
  const std::string base = hf::kAdapterKeyPrefix + layer.path();
  layer.attach_vera(std::unique_ptr<nn::Vera>(
      new nn::Vera{.projection = std::move(projection),
                   .b = {base + ".vera_lambda_b", {layer.out_features()}, at::kFloat},
                   .d = {base + ".vera_lambda_d", {options.r}, at::kFloat},
                   .dropout = options.dropout,
                   .layer_id = layer_id}));
}

nn::VeraProjection projection_for(const std::vector<nn::Linear*>& layers,
                                  const LoraOptions& options) {
  int64_t in = 0, out = 0;
  for (const nn::Linear* layer : layers) {
    in = std::max(in, layer->in_features());
    out = std::max(out, layer->out_features());
  }
  return draw_projection(options.projection_prng_key, options.r, in, out);
}

void check_virtual_tokens(const LoraOptions& options) {
  if (options.num_virtual_tokens < 1) {
    throw ConfigError(
        "num_virtual_tokens: found {}, expected at least 1; pass how many rows to train, such as "
        "20",
        options.num_virtual_tokens);
  }
  const std::string& init = options.prompt_init;
  if (init != "RANDOM" && init != "TEXT" && init != "SAMPLE_VOCAB") {
    throw ConfigError(
        "prompt_tuning_init: found \"{}\", expected RANDOM, TEXT or SAMPLE_VOCAB; choose one of "
        "them",
        init);
  }
}

bool is_feedforward(const std::string& path, const LoraOptions& options,
                    const models::Model& model) {
  if (options.feedforward_pattern)
    return hf::ModulePattern(*options.feedforward_pattern).matches(path);
  const auto names = options.feedforward_modules.value_or(model.default_ia3_feedforward());
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
      const bool is_wrapped = layer->low_rank() != nullptr || layer->vera() != nullptr;
      if (layer->bias() == nullptr || (options.bias != "all" && !is_wrapped)) continue;
      const char* end = is_wrapped ? ".base_layer.bias" : ".bias";
      tensors.push_back({hf::kAdapterKeyPrefix + layer->path() + end, layer->bias()});
    }
  }
  if (options.bias != "all") return tensors;
  // Those of norms.
  for (nn::Parameter* parameter : model.parameters()) {
    const std::string& name = parameter->name();
    if (!name.ends_with(".bias") || name.starts_with(hf::kAdapterKeyPrefix)) continue;
    const bool is_known = std::ranges::any_of(
        tensors, [&](const AdapterTensor& tensor) { return tensor.parameter == parameter; });
    if (!is_known) tensors.push_back({hf::kAdapterKeyPrefix + name, parameter});
  }
  return tensors;
}

}  // namespace

std::unique_ptr<LoraAdapter> attach_lora(models::Model& model, const LoraOptions& options) {
  auto adapter = std::make_unique<LoraAdapter>();
  adapter->options_ = options;
  if (options.has_virtual_tokens()) {
    adapter->attach_virtual_tokens(model);
  } else {
    adapter->attach_layers(model);
  }
  return adapter;
}

void LoraAdapter::attach_virtual_tokens(models::Model& model) {
  check_virtual_tokens(options_);
  const bool is_prompt = options_.method == Method::kPrompt;
  int64_t width = model.hidden_size();
  if (!is_prompt) {
    const models::KeyValueShape shape = model.key_value_shape();
    width = shape.layers * 2 * shape.heads * shape.head_dim;
  }
  for (nn::Parameter* parameter : model.parameters()) parameter->set_requires_grad(false);
  using Kind = nn::VirtualTokens::Kind;
  if (!is_prompt && options_.prefix_projection) {
    const models::KeyValueShape shape = model.key_value_shape();
    const int64_t input = shape.heads * shape.head_dim;
    const int64_t hidden = options_.encoder_hidden_size > 0 ? options_.encoder_hidden_size : input;
    const auto projection = std::make_shared<nn::PrefixProjection>(
        std::string(hf::kAdapterKeyPrefix) + hf::kPromptEncoder,
        nn::PrefixProjection::Sizes{options_.num_virtual_tokens, input, hidden, width});
    model.attach_virtual_tokens({Kind::kPrefix, projection->result(), projection});
    inner_parameters_ = projection->parameters();
    return;
  }
  // PEFT keeps the prompt beside the model: its key has no prefix.
  auto values = std::make_shared<nn::Parameter>(
      std::string(hf::kAdapterKeyPrefix) + hf::kPromptKey,
      std::vector<int64_t>{options_.num_virtual_tokens, width}, at::kFloat);
  values->set_embedding_table();
  model.attach_virtual_tokens({is_prompt ? Kind::kPrompt : Kind::kPrefix, values});
  tensors_.push_back({hf::kPromptKey, values.get()});
}

void LoraAdapter::attach_layers(models::Model& model) {
  check_options(options_);
  check_init(options_.init);
  const TargetLayers targets = find_targets(options_, model);
  require_computed_on_experts(options_, targets.layers, model);
  expert_parameters_ = find_target_parameters(options_, model);
  const auto saved = weights_to_save(options_, model);
  for (nn::Parameter* parameter : model.parameters()) parameter->set_requires_grad(false);
  layers_ = targets.layers;
  saved_target_modules_ = targets.list;
  if (targets.list.empty() && options_.target_pattern) {
    saved_target_modules_ = {*options_.target_pattern};
  }
  if (targets.embedding != nullptr) {
    attach_branch(*targets.embedding, options_);
    embedding_ = targets.embedding;
    nn::EmbeddingBranch& branch = *targets.embedding->low_rank();
    tensors_ = {{branch.a.name(), &branch.a}, {branch.b.name(), &branch.b}};
    if (branch.magnitude) tensors_.push_back({branch.magnitude->name(), branch.magnitude.get()});
  }
  if (options_.method == Method::kVera) {
    projection_ = std::make_shared<nn::VeraProjection>(projection_for(layers_, options_));
    if (options_.save_projection) {
      fixed_tensors_ = {{"base_model.vera_A", &projection_->a},
                        {"base_model.vera_B", &projection_->b}};
    }
  }
  const int64_t most_of_all = most_rank(layers_, options_);
  for (size_t i = 0; i < layers_.size(); ++i) {
    nn::Linear& layer = *layers_[i];
    std::vector<nn::Parameter*> parameters;
    if (options_.method == Method::kIa3) {
      attach_factors(layer, options_, model);
      parameters.push_back(&layer.rescale()->factors);
    } else if (options_.method == Method::kVera) {
      attach_vectors(layer, options_, i, projection_);
      parameters = {&layer.vera()->b, &layer.vera()->d};
    } else {
      attach_branch(layer, options_, i, most_of_all);
      layer.low_rank()->append_parameters(parameters);
    }
    for (nn::Parameter* parameter : parameters) {
      tensors_.push_back({parameter->name(), parameter});
    }
  }
  attach_branches(expert_parameters_, options_);
  for (const nn::ExpertParameter* matrices : expert_parameters_) {
    for (nn::Parameter* parameter : {&matrices->branch->a, &matrices->branch->b}) {
      tensors_.push_back({parameter->name(), parameter});
    }
  }
  if (options_.bias != "none") {
    for (AdapterTensor& tensor : trained_biases(options_, model)) {
      tensor.parameter->set_requires_grad(true);
      tensors_.push_back(std::move(tensor));
    }
  }
  const bool was_tied = is_tied(model);
  for (const std::string& name : saved) {
    if (stays_tied(options_, model, name)) {
      train_as_one(model);
      continue;
    }
    tensors_.push_back({hf::kAdapterKeyPrefix + name, &model.trainable_copy(name)});
  }
  if (!options_.trainable_tokens.empty()) {
    trained_tokens_ = attach_token_rows(model, options_);
    nn::Parameter& rows = trained_tokens_->rows->rows();
    tensors_.push_back({rows.name(), &rows});
  }
  const bool targets_head =
      std::any_of(layers_.begin(), layers_.end(),
                  [](const nn::Linear* layer) { return layer->path() == "lm_head"; }) ||
      (trained_tokens_ && trained_tokens_->is_output_alone);
  notes_ = notes_on_ties(options_, targets.embedding != nullptr || targets_head, saved, was_tied);
  if (const auto whole = targets_that_train_whole(options_, model); !whole.empty()) {
    notes_.push_back(
        fmt::format("target_modules: {} has no branch, it trains whole (modules_to_save)",
                    fmt::join(whole, ", ")));
  }
  if (options_.fan_in_fan_out && std::ranges::none_of(layers_, [](const nn::Linear* layer) {
        return layer->weight().is_transposed();
      })) {
    notes_.push_back(
        "fan_in_fan_out: has no effect, the layers store [out, in]; PEFT sets it to false too");
  }
  if (draws_directions(options_)) {
    notes_.push_back(fmt::format(
        "init_lora_weights: {} searches from random directions, which no file holds; before it is "
        "merged or answers the adapter is written as a plain LoRA with strata convert --to lora, "
        "which needs the adapter of a run with the same seed and a learning_rate of 0",
        options_.init));
  }
}

void LoraAdapter::settle_fixed_tensors(at::Device device) const {
  if (projection_ == nullptr) return;
  for (const nn::Linear* layer : layers_) {
    const nn::Parameter& weight = layer->weight();
    if (!weight.quantization()) round_projection(*projection_, weight.storage_type());
  }
  projection_->a = projection_->a.to(device);
  projection_->b = projection_->b.to(device);
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
    const bool has_rows = trained_tokens_ && weight.parameter == trained_tokens_->weight &&
                          (path == trained_tokens_->path || !trained_tokens_->is_output_alone);
    const char* wrapper = is_wrapped ? ".base_layer" : has_rows ? ".token_adapter.base_layer" : "";
    const std::string name = module + wrapper + weight.name.substr(dot);
    if (is_wanted(name)) add_once({name, weight.parameter});
    // A tied output layer takes the same rows, and PEFT then saves them under its name too.
    const std::string rows = module + ".token_adapter.trainable_tokens_delta";
    if (has_rows && is_wanted(rows)) {
      add_once({rows, &trained_tokens_->rows->rows()});
    }
  }
}

void LoraAdapter::check_tensors(
    const std::vector<std::pair<std::string, std::vector<int64_t>>>& found,
    const std::string& file) const {
  std::map<std::string, std::vector<int64_t>> shapes(found.begin(), found.end());
  std::vector<std::pair<std::string, std::vector<int64_t>>> expected;
  for (const AdapterTensor& tensor : tensors_) {
    expected.emplace_back(tensor.name, tensor.parameter->shape());
  }
  for (const FixedTensor& fixed : fixed_tensors_) {
    expected.emplace_back(fixed.name, fixed.tensor->sizes().vec());
  }
  std::vector<std::string> faults;
  for (const auto& [name, shape] : expected) {
    const auto entry = shapes.find(name);
    if (entry == shapes.end()) {
      faults.push_back(fmt::format("found no tensor \"{}\"", name));
      continue;
    }
    if (entry->second != shape) {
      faults.push_back(
          fmt::format("tensor \"{}\" has shape [{}], adapter and base config imply [{}]", name,
                      fmt::join(entry->second, ", "), fmt::join(shape, ", ")));
    }
    shapes.erase(entry);
  }
  if (!faults.empty()) {
    constexpr size_t kShown = 5;
    const size_t shown = std::min(kShown, faults.size());
    const std::string rest =
        shown < faults.size() ? fmt::format(", and {} more", faults.size() - shown) : "";
    throw FormatError(
        "{}: {}{}, expected every weight that adapter_config.json implies in its shape; use the "
        "adapter with the model it was made for",
        file, fmt::join(faults.begin(), faults.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
        rest);
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
      file, shapes.begin()->first, expected.size());
}

}  // namespace strata::adapters
