#include "strata/train/setup/widen_weights.h"

#include <set>

#include "strata/models/vocabulary.h"
#include "strata/train/setup/base_quantization.h"

namespace strata::train {
namespace {

// Weights whose type decides how something starts: branches over them, rows that are added, and
// what comes before every document.
std::set<const nn::Parameter*> types_of_starts(const Trainee& trainee) {
  std::set<const nn::Parameter*> weights;
  for (const models::VocabularyWeight& weight : models::vocabulary_weights(*trainee.model)) {
    const bool is_read = weight.parameter->num_new_rows() != 0 ||
                         trainee.model->virtual_tokens() != nullptr ||
                         (trainee.adapter && trainee.adapter->trained_tokens());
    if (is_read) weights.insert(weight.parameter);
  }
  if (!trainee.adapter) return weights;
  for (const nn::Linear* layer : trainee.adapter->layers()) weights.insert(&layer->weight());
  for (const nn::ExpertParameter* matrices : trainee.adapter->expert_parameters()) {
    weights.insert(matrices->weights.begin(), matrices->weights.end());
  }
  if (const nn::Embedding* embedding = trainee.adapter->embedding()) {
    weights.insert(&embedding->weight());
  }
  return weights;
}

}  // namespace

void widen_beside_codes(const comm::Mesh& mesh, Trainee& trainee) {
  if (!has_bitsandbytes_codes(*trainee.model) || mesh.shard->size() > 1) return;
  const std::set<const nn::Parameter*> starts = types_of_starts(trainee);
  for (nn::Parameter* parameter : trainee.model->parameters()) {
    const bool is_as_computed = parameter->storage_type() == trainee.compute_type;
    const bool stays = parameter->quantization() || (is_as_computed && !starts.contains(parameter));
    if (!stays) parameter->set_storage_type(at::kFloat);
  }
}

void widen_trained_weights(models::Model& model) {
  for (nn::Parameter* parameter : model.parameters()) {
    if (parameter->requires_grad()) parameter->set_storage_type(at::kFloat);
  }
}

}  // namespace strata::train
