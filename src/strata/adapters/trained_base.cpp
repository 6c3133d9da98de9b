#include "strata/adapters/trained_base.h"

#include <algorithm>
#include <utility>

#include "strata/adapters/token_embedding.h"
#include "strata/hf/adapter_files.h"
#include "strata/models/vocabulary.h"
#include "strata/nn/linear.h"

namespace strata::adapters {
namespace {

// The base's biases that train, under the names that PEFT gives them. Those of `saved` train with
// their modules, under the same names.
std::vector<AdapterTensor> trained_biases(const LoraOptions& options, models::Model& model,
                                          const std::vector<std::string>& saved) {
  std::vector<AdapterTensor> tensors;
  const auto is_saved = [&](const std::string& name) {
    return std::ranges::find(saved, name) != saved.end();
  };
  for (models::Block* block : model.blocks()) {
    for (const nn::Linear* layer : block->linears()) {
      const bool is_wrapped = layer->low_rank() != nullptr || layer->vera() != nullptr;
      if (layer->bias() == nullptr || layer->bias()->is_buffer()) continue;
      if (options.bias != "all" && !is_wrapped) continue;
      if (is_saved(layer->path() + ".bias")) continue;
      const char* end = is_wrapped ? ".base_layer.bias" : ".bias";
      tensors.push_back({hf::kAdapterKeyPrefix + layer->path() + end, layer->bias()});
    }
  }
  if (options.bias != "all") return tensors;
  // Those of norms.
  for (nn::Parameter* parameter : model.parameters()) {
    const std::string& name = parameter->name();
    if (!name.ends_with(".bias") || name.starts_with(hf::kAdapterKeyPrefix)) continue;
    if (is_saved(name)) continue;
    const bool is_known = std::ranges::any_of(
        tensors, [&](const AdapterTensor& tensor) { return tensor.parameter == parameter; });
    if (!is_known) tensors.push_back({hf::kAdapterKeyPrefix + name, parameter});
  }
  return tensors;
}

// A tied weight under both its names.
void train_as_one(models::Model& model, std::vector<AdapterTensor>& tensors) {
  for (const models::VocabularyWeight& weight : models::vocabulary_weights(model)) {
    if (!weight.parameter->requires_grad()) model.add_tied_copy(weight.parameter->numel());
    weight.parameter->set_requires_grad(true);
    add_once(tensors, {hf::kAdapterKeyPrefix + weight.name, weight.parameter});
  }
}

}  // namespace

std::vector<AdapterTensor> train_biases(const LoraOptions& options, models::Model& model,
                                        const std::vector<std::string>& saved) {
  if (options.bias == "none") return {};
  std::vector<AdapterTensor> tensors = trained_biases(options, model, saved);
  for (const AdapterTensor& tensor : tensors) tensor.parameter->set_requires_grad(true);
  return tensors;
}

void train_saved_modules(const LoraOptions& options, models::Model& model,
                         const std::vector<std::string>& saved,
                         std::vector<AdapterTensor>& tensors) {
  for (const std::string& name : saved) {
    if (stays_tied(options, model, name)) {
      train_as_one(model, tensors);
      continue;
    }
    tensors.push_back({hf::kAdapterKeyPrefix + name, &model.trainable_copy(name)});
  }
}

void add_once(std::vector<AdapterTensor>& tensors, AdapterTensor tensor) {
  const bool is_there = std::any_of(tensors.begin(), tensors.end(),
                                    [&](const auto& other) { return other.name == tensor.name; });
  if (!is_there) tensors.push_back(std::move(tensor));
}

}  // namespace strata::adapters
