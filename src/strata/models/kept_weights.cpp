#include "strata/models/kept_weights.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "strata/models/skipped_modules.h"
#include "strata/models/vocabulary.h"

namespace strata::models {
namespace {

// What config.json calls the list, by who wrote it.
constexpr const char* kPlainLists[] = {"modules_to_not_convert", "ignored_layers", "ignore"};

// Modules that stay as they are; those of compressed-tensors may be marked as expressions.
SkipModules plain_modules(const Json& quantization) {
  constexpr std::string_view kExpression = "re:", kExcepted = "-:";
  std::vector<std::string> names = {"lm_head"};
  for (const char* key : kPlainLists) {
    const auto found = quantization.find(key);
    if (found == quantization.end() || !found->is_array()) continue;
    for (const Json& entry : *found) {
      if (!entry.is_string()) continue;
      std::string name = entry.get<std::string>();
      if (name.starts_with(kExpression)) name.erase(0, kExpression.size());
      names.push_back(std::move(name));
    }
  }
  // GPTQModel's settings of single layers.
  const auto dynamic = quantization.find("dynamic");
  if (dynamic == quantization.end() || !dynamic->is_object()) return names;
  for (const auto& [pattern, settings] : dynamic->items()) {
    if (pattern.starts_with(kExcepted)) names.push_back(pattern.substr(kExcepted.size()));
  }
  return names;
}

}  // namespace

std::vector<nn::Linear*> keepable_linears(Model& model) {
  std::set<const nn::Parameter*> plain;
  for (const VocabularyWeight& weight : vocabulary_weights(model)) plain.insert(weight.parameter);
  std::vector<nn::Linear*> layers = quantizable_linears(model);
  std::erase_if(layers, [&](const nn::Linear* layer) {
    const nn::Parameter& weight = layer->weight();
    return plain.contains(&weight) || weight.requires_grad() || weight.is_transposed();
  });
  return layers;
}

std::vector<nn::Linear*> announced_linears(Model& model, const Json& quantization_config) {
  const SkippedModules plain(plain_modules(quantization_config),
                             "config.json: quantization_config");
  std::vector<nn::Linear*> layers = quantizable_linears(model);
  std::erase_if(layers, [&](const nn::Linear* layer) { return plain.contains(layer->path()); });
  return layers;
}

}  // namespace strata::models
