#include "strata/adapters/lora.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <set>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/ranges.h>

#include "strata/adapters/module_match.h"
#include "strata/base/error.h"
#include "strata/hf/adapter_files.h"

namespace strata::adapters {
namespace {

// PEFT shortens lists of at least this many names.
constexpr size_t kLongList = 20;
constexpr const char* kOutputLayer = "lm_head";

std::map<std::string, nn::Linear*> linears_by_path(models::Model& model,
                                                   std::vector<std::string>* order) {
  std::map<std::string, nn::Linear*> linears;
  for (models::Block* block : model.blocks()) {
    for (nn::Linear* layer : block->linears()) {
      linears[layer->path()] = layer;
      order->push_back(layer->path());
    }
  }
  return linears;
}

std::vector<std::string> all_module_paths(models::Model& model) {
  std::vector<std::string> names;
  for (const nn::Parameter* parameter : model.parameters()) names.push_back(parameter->name());
  // A tied output layer owns no weight but is a module.
  for (models::Block* block : model.blocks()) {
    for (const nn::Linear* layer : block->linears()) names.push_back(layer->path() + ".weight");
  }
  return module_paths(names);
}

void check_options(const LoraOptions& options) {
  if (options.r < 1) {
    throw ConfigError("lora_r: found {}, expected at least 1; pass a positive rank", options.r);
  }
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    throw ConfigError("lora_dropout: found {}, expected 0 or more and less than 1; correct it",
                      options.dropout);
  }
  if (!std::isfinite(options.alpha)) {
    throw ConfigError("lora_alpha: found {}, expected a finite number; correct it", options.alpha);
  }
}

bool is_all_linear(const LoraOptions& options) {
  std::string text = options.target_pattern.value_or("");
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text == "all-linear";
}

// The list that stands for the settings; empty where an expression matches instead.
std::vector<std::string> target_list(const LoraOptions& options, models::Model& model,
                                     const std::vector<std::string>& linear_paths,
                                     const std::vector<std::string>& all_paths) {
  std::vector<std::string> targets;
  if (is_all_linear(options)) {
    for (const std::string& path : linear_paths) {
      if (path != kOutputLayer) targets.push_back(path);
    }
  } else if (!options.target_pattern.has_value()) {
    targets =
        options.target_modules.empty() ? model.default_lora_targets() : options.target_modules;
  }
  if (targets.size() < kLongList) return targets;
  std::vector<std::string> others;
  for (const std::string& path : all_paths) {
    if (!matches_list(path, targets)) others.push_back(path);
  }
  std::vector<std::string> shorter = minimal_suffixes(targets, others);
  return shorter.size() < targets.size() ? shorter : targets;
}

std::vector<std::string> matching_paths(const LoraOptions& options,
                                        const std::vector<std::string>& targets,
                                        const std::vector<std::string>& all_paths) {
  std::unique_ptr<PathPattern> pattern;
  if (targets.empty()) pattern = std::make_unique<PathPattern>(*options.target_pattern);
  std::vector<std::string> matched;
  for (const std::string& path : all_paths) {
    if (is_inside(path, options.modules_to_save)) continue;
    if (pattern != nullptr ? pattern->matches(path) : matches_list(path, targets)) {
      matched.push_back(path);
    }
  }
  return matched;
}

std::string described_target(const LoraOptions& options, const std::vector<std::string>& targets) {
  return targets.empty() ? "\"" + *options.target_pattern + "\""
                         : fmt::format("[{}]", fmt::join(targets, ", "));
}

std::vector<std::string> targeted_linears(const LoraOptions& options,
                                          const std::vector<std::string>& targets,
                                          const std::vector<std::string>& all_paths,
                                          const std::map<std::string, nn::Linear*>& linears) {
  std::vector<std::string> matched = matching_paths(options, targets, all_paths);
  for (const std::string& path : matched) {
    if (linears.contains(path)) continue;
    throw ConfigError(
        "target_modules: found {} matching \"{}\", expected linear layers only; name "
        "the layers inside it or use \"all-linear\"",
        described_target(options, targets), path);
  }
  if (matched.empty()) {
    std::set<std::string> names;
    for (const auto& [path, layer] : linears) names.insert(path.substr(path.rfind('.') + 1));
    throw ConfigError(
        "target_modules: found no module matching {}, expected some of {}; name at "
        "least one of them",
        described_target(options, targets), fmt::join(names, ", "));
  }
  return matched;
}

std::unique_ptr<nn::LowRankBranch> make_branch(const nn::Linear& layer, const LoraOptions& options,
                                               uint64_t layer_id) {
  const std::string base = hf::kAdapterKeyPrefix + layer.path();
  const double rank = static_cast<double>(options.r);
  return std::unique_ptr<nn::LowRankBranch>(new nn::LowRankBranch{
      .a = {base + ".lora_A.weight", {options.r, layer.in_features()}, at::kFloat},
      .b = {base + ".lora_B.weight", {layer.out_features(), options.r}, at::kFloat},
      .scaling = options.alpha / (options.use_rslora ? std::sqrt(rank) : rank),
      .dropout = options.dropout,
      .layer_id = layer_id});
}

// The base's weights inside the named modules. PEFT matches the ends of paths, with or without dot.
std::vector<std::string> weights_to_save(const LoraOptions& options, models::Model& model,
                                         const std::vector<std::string>& all_paths) {
  std::vector<std::string> modules;
  for (const std::string& entry : options.modules_to_save) {
    const size_t before = modules.size();
    for (const std::string& path : all_paths) {
      if (path.ends_with(entry)) modules.push_back(path);
    }
    if (modules.size() == before) {
      throw ConfigError(
          "modules_to_save: found no module whose path ends with \"{}\", expected "
          "names such as lm_head, embed_tokens, norm; correct it",
          entry);
    }
  }
  std::vector<std::string> weights;
  std::set<std::string> seen;
  const auto add = [&](const std::string& name) {
    for (const std::string& module : modules) {
      if (name.starts_with(module + ".") && seen.insert(name).second) weights.push_back(name);
    }
  };
  for (const nn::Parameter* parameter : model.parameters()) {
    if (!parameter->name().starts_with(hf::kAdapterKeyPrefix)) add(parameter->name());
  }
  add(std::string(kOutputLayer) + ".weight");
  return weights;
}

// torch.nn.init.kaiming_uniform_(a=sqrt(5)) of [rows, columns], as nn.Linear and PEFT draw it.
at::Tensor draw_linear(int64_t rows, int64_t columns, const at::Generator& generator) {
  const double slope = std::sqrt(5.0);
  const double gain = std::sqrt(2.0 / (1 + slope * slope));
  const double bound = std::sqrt(3.0) * (gain / std::sqrt(static_cast<double>(columns)));
  return at::empty({rows, columns}, at::kFloat).uniform_(-bound, bound, generator);
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
  std::vector<std::string> linear_paths;
  const auto linears = linears_by_path(model, &linear_paths);
  const auto all_paths = all_module_paths(model);
  const auto targets = target_list(options, model, linear_paths, all_paths);
  const auto matched = targeted_linears(options, targets, all_paths, linears);
  const auto saved = weights_to_save(options, model, all_paths);

  for (nn::Parameter* parameter : model.parameters()) parameter->set_requires_grad(false);
  auto adapter = std::make_unique<LoraAdapter>();
  adapter->options_ = options;
  adapter->saved_target_modules_ =
      targets.empty() ? std::vector<std::string>{*options.target_pattern} : targets;
  for (const std::string& path : linear_paths) {
    if (std::find(matched.begin(), matched.end(), path) == matched.end()) continue;
    nn::Linear* layer = linears.at(path);
    layer->attach_low_rank(make_branch(*layer, options, adapter->layers_.size()));
    adapter->layers_.push_back(layer);
    nn::LowRankBranch& branch = *layer->low_rank();
    adapter->tensors_.push_back({branch.a.name(), &branch.a});
    adapter->tensors_.push_back({branch.b.name(), &branch.b});
  }
  for (const std::string& name : saved) {
    adapter->tensors_.push_back({hf::kAdapterKeyPrefix + name, &model.trainable_copy(name)});
  }
  return adapter;
}

void LoraAdapter::initialize(uint64_t seed, const Place& place) const {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (const nn::Linear* layer : layers_) {
    nn::LowRankBranch& branch = *layer->low_rank();
    const int64_t rank = branch.a.shape()[0];
    draw_linear(rank, layer->in_features(), generator);   // nn.Linear's own values of A
    draw_linear(layer->out_features(), rank, generator);  // and of B, both replaced
    at::Tensor a = draw_linear(rank, layer->in_features(), generator);
    // PEFT moves the branch to the base's type before it makes it fp32 again.
    if (!layer->weight().quantization()) {
      a = a.to(layer->weight().storage_type()).to(at::kFloat);
    }
    place(branch.a, a);
    place(branch.b, at::zeros({layer->out_features(), rank}, at::kFloat));
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
  // PEFT adds the base's weight of a targeted output layer to the file.
  for (const nn::Linear* layer : layers_) {
    const std::string base = hf::kAdapterKeyPrefix + layer->path() + ".base_layer.";
    std::erase_if(shapes, [&](const auto& found) { return found.first.starts_with(base); });
  }
  if (shapes.empty()) return;
  throw FormatError(
      "{}: found tensor \"{}\" that adapter_config.json does not imply, expected {} "
      "tensors; use the adapter_config.json that belongs to it",
      file, shapes.begin()->first, tensors_.size());
}

std::string trainable_parameters_line(models::Model& model) {
  int64_t trainable = 0, all = model.num_replaced_elements();
  for (const nn::Parameter* parameter : model.parameters()) {
    all += parameter->numel();
    if (parameter->requires_grad()) trainable += parameter->numel();
  }
  return fmt::format("trainable params: {} || all params: {} || trainable%: {:.4f}",
                     with_thousands(trainable), with_thousands(all),
                     100.0 * static_cast<double>(trainable) / static_cast<double>(all));
}

}  // namespace strata::adapters
