#include "strata/adapters/lora.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include <fmt/ranges.h>

#include "strata/adapters/layer_branches.h"
#include "strata/adapters/lora_init.h"
#include "strata/adapters/matched_parts.h"
#include "strata/adapters/target_parameters.h"
#include "strata/adapters/token_embedding.h"
#include "strata/adapters/trained_base.h"
#include "strata/adapters/vera.h"
#include "strata/base/error.h"
#include "strata/hf/adapter_files.h"
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
        "layers_to_transform: found with target_modules \"{}\", expected a list of names there; "
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
    throw ConfigError("lora_bias: found with use_dora, expected one of them; remove one");
  }
  if (options.lora_bias && options.init != "true" && options.init != "false") {
    throw ConfigError(
        "lora_bias: found with init_lora_weights \"{}\", expected true or false there; change one",
        options.init);
  }
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

void freeze(models::Model& model) {
  for (nn::Parameter* parameter : model.parameters()) parameter->set_requires_grad(false);
}

std::vector<AdapterTensor> attach_to_embedding(nn::Embedding& embedding,
                                               const LoraOptions& options) {
  attach_branch(embedding, options);
  nn::EmbeddingBranch& branch = *embedding.low_rank();
  std::vector<AdapterTensor> tensors = {{branch.a.name(), &branch.a}, {branch.b.name(), &branch.b}};
  if (branch.magnitude) tensors.push_back({branch.magnitude->name(), branch.magnitude.get()});
  return tensors;
}

std::vector<AdapterTensor> attach_to_experts(const std::vector<nn::ExpertParameter*>& targets,
                                             const LoraOptions& options) {
  attach_branches(targets, options);
  std::vector<AdapterTensor> tensors;
  for (const nn::ExpertParameter* matrices : targets) {
    for (nn::Parameter* parameter : {&matrices->branch->a, &matrices->branch->b}) {
      tensors.push_back({parameter->name(), parameter});
    }
  }
  return tensors;
}

void append(std::vector<AdapterTensor>& tensors, std::vector<AdapterTensor> more) {
  std::ranges::move(more, std::back_inserter(tensors));
}

// What the adapter's file holds of VeRA's matrices.
std::vector<FixedTensor> stored_matrices(nn::VeraProjection& projection,
                                         const LoraOptions& options) {
  if (!options.save_projection) return {};
  return {{"base_model.vera_A", &projection.a}, {"base_model.vera_B", &projection.b}};
}

using Shapes = std::map<std::string, std::vector<int64_t>>;

// What is wrong with the `expected` tensors of a file; takes those that it has out of `shapes`.
std::vector<std::string> take_expected(
    const std::vector<std::pair<std::string, std::vector<int64_t>>>& expected, Shapes& shapes) {
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
  return faults;
}

[[noreturn]] void refuse(const std::string& file, const std::vector<std::string>& faults) {
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

// PEFT applies a bias of an adapted layer that is in the file, whatever `bias` says.
[[noreturn]] void refuse_trained_bias(const std::string& file, const std::string& name,
                                      const std::string& bias) {
  throw FormatError(
      "{}: found the trained bias \"{}\", adapter_config.json says bias {}, expected lora_only or, "
      "where biases of other layers trained too, all; correct adapter_config.json",
      file, name, bias);
}

// PEFT adds the base's weight and bias of a targeted embedding or output layer to the file.
void drop_copies_of_base(const std::vector<std::string>& targeted, Shapes& shapes) {
  for (const std::string& path : targeted) {
    const std::string base = hf::kAdapterKeyPrefix + path + ".base_layer.";
    std::erase_if(shapes, [&](const auto& found) { return found.first.starts_with(base); });
  }
  // And both copies of a module that is trained whole, when the vocabulary has grown.
  std::erase_if(shapes, [](const auto& found) {
    return found.first.find(".original_module.") != std::string::npos ||
           found.first.find(".modules_to_save.") != std::string::npos;
  });
}

std::vector<std::string> targeted_vocabulary(const std::vector<nn::Linear*>& layers,
                                             const nn::Embedding* embedding, models::Model& model) {
  std::vector<std::string> paths;
  if (embedding != nullptr) paths.push_back(embedding->path());
  for (const models::VocabularyWeight& weight : models::vocabulary_weights(model)) {
    const auto is_targeted = [&](const nn::Linear* layer) {
      return layer->path() + ".weight" == weight.name;
    };
    const auto found = std::ranges::find_if(layers, is_targeted);
    if (found != layers.end()) paths.push_back((*found)->path());
  }
  return paths;
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
  const std::string prefix = hf::kAdapterKeyPrefix;
  const bool is_prompt = options_.method == Method::kPrompt;
  int64_t width = model.hidden_size();
  if (!is_prompt) {
    const models::KeyValueShape shape = model.key_value_shape();
    width = shape.layers * 2 * shape.heads * shape.head_dim;
  }
  freeze(model);
  using Kind = nn::VirtualTokens::Kind;
  if (!is_prompt && options_.prefix_projection) {
    const models::KeyValueShape shape = model.key_value_shape();
    const int64_t input = shape.heads * shape.head_dim;
    const int64_t hidden = options_.encoder_hidden_size > 0 ? options_.encoder_hidden_size : input;
    const auto projection = std::make_shared<nn::PrefixProjection>(
        prefix + hf::kPromptEncoder,
        nn::PrefixProjection::Sizes{options_.num_virtual_tokens, input, hidden, width});
    model.attach_virtual_tokens({Kind::kPrefix, projection->result(), projection});
    inner_parameters_ = projection->parameters();
    return;
  }
  // PEFT keeps the prompt beside the model: its key has no prefix.
  auto values = std::make_shared<nn::Parameter>(
      prefix + hf::kPromptKey, std::vector<int64_t>{options_.num_virtual_tokens, width},
      at::kFloat);
  values->set_embedding_table();
  model.attach_virtual_tokens({is_prompt ? Kind::kPrompt : Kind::kPrefix, values});
  tensors_.push_back({hf::kPromptKey, values.get()});
}

void LoraAdapter::attach_layers(models::Model& model) {
  check_options(options_);
  check_init(options_.init);
  const MatchedParts parts = match_parts(options_, model);
  layers_ = parts.targets.layers;
  embedding_ = parts.targets.embedding;
  expert_parameters_ = parts.expert_parameters;
  saved_target_modules_ = target_modules_to_save(options_, parts.targets);
  targeted_vocabulary_ = targeted_vocabulary(layers_, embedding_, model);
  freeze(model);
  if (options_.method == Method::kVera) {
    projection_ = make_projection(layers_, options_);
    fixed_tensors_ = stored_matrices(*projection_, options_);
  }
  // In the order of the file.
  if (embedding_ != nullptr) append(tensors_, attach_to_embedding(*embedding_, options_));
  append(tensors_, attach_to_layers(layers_, options_, model, projection_));
  append(tensors_, attach_to_experts(expert_parameters_, options_));
  std::vector<AdapterTensor> biases = train_biases(options_, model, parts.saved);
  const bool lacks_biases = options_.bias != "none" && biases.empty();
  append(tensors_, std::move(biases));
  train_saved_modules(options_, model, parts.saved, tensors_);
  if (!options_.trainable_tokens.empty()) {
    trained_tokens_ = attach_token_rows(model, options_);
    nn::Parameter& rows = trained_tokens_->rows->rows();
    tensors_.push_back({rows.name(), &rows});
  }
  notes_ = notes_on(options_, model, parts, trained_tokens_);
  if (lacks_biases) {
    notes_.push_back(
        fmt::format("bias: {} has no effect, the layers that it means have none", options_.bias));
  }
}

void LoraAdapter::settle_fixed_tensors(at::Device device) const {
  if (projection_ == nullptr) return;
  for (const nn::Linear* layer : layers_) {
    const nn::Parameter& weight = layer->weight();
    const auto& codes = weight.quantization();
    if (codes && ops::quant::is_of_bitsandbytes(codes->format)) continue;
    round_projection(*projection_, weight.plain_storage_type());
  }
  projection_->a = projection_->a.to(device);
  projection_->b = projection_->b.to(device);
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
    if (is_wanted(name)) add_once(tensors_, {name, weight.parameter});
    // A tied output layer takes the same rows, and PEFT then saves them under its name too.
    const std::string rows = module + ".token_adapter.trainable_tokens_delta";
    if (has_rows && is_wanted(rows)) {
      add_once(tensors_, {rows, &trained_tokens_->rows->rows()});
    }
  }
}

void LoraAdapter::check_tensors(
    const std::vector<std::pair<std::string, std::vector<int64_t>>>& found,
    const std::string& file) const {
  Shapes shapes(found.begin(), found.end());
  std::vector<std::pair<std::string, std::vector<int64_t>>> expected;
  for (const AdapterTensor& tensor : tensors_) {
    expected.emplace_back(tensor.name, tensor.parameter->shape());
  }
  for (const FixedTensor& fixed : fixed_tensors_) {
    expected.emplace_back(fixed.name, fixed.tensor->sizes().vec());
  }
  const std::vector<std::string> faults = take_expected(expected, shapes);
  if (!faults.empty()) refuse(file, faults);
  drop_copies_of_base(targeted_vocabulary_, shapes);
  if (shapes.empty()) return;
  const std::string& first = shapes.begin()->first;
  const bool has_setting = options_.method == Method::kLora || options_.method == Method::kVera;
  if (has_setting && first.ends_with(".base_layer.bias")) {
    refuse_trained_bias(file, first, options_.bias);
  }
  throw FormatError(
      "{}: found tensor \"{}\" that adapter_config.json does not imply, expected {} "
      "tensors; use the adapter_config.json that belongs to it",
      file, first, expected.size());
}

}  // namespace strata::adapters
