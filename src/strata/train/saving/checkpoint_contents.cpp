#include "strata/train/saving/checkpoint_contents.h"

#include <set>

#include "strata/base/json.h"
#include "strata/checkpoint/export.h"
#include "strata/hf/adapter_files.h"
#include "strata/hf/export_index.h"
#include "strata/hf/weight_names.h"

namespace strata::train {

checkpoint::WholeFiles whole_files_of(const Trainee& trainee) {
  checkpoint::WholeFiles whole;
  if (trainee.adapter) {
    whole.weights = hf::kAdapterWeightsFile;
    whole.metadata = checkpoint::adapter_metadata(trainee.base_fingerprint);
    for (const adapters::AdapterTensor& tensor : trainee.adapter->tensors()) {
      whole.names[tensor.parameter->name()].push_back(tensor.name);
    }
    for (const nn::Parameter* parameter : trainee.adapter->inner_parameters()) {
      whole.names[parameter->name()] = {};
    }
    for (const adapters::FixedTensor& fixed : trainee.adapter->fixed_tensors()) {
      whole.fixed.emplace_back(fixed.name, *fixed.tensor);
    }
    return whole;
  }
  whole.weights = hf::kModelWeightsFile;
  for (const nn::Parameter* parameter : trainee.model->parameters()) {
    const std::string& name = parameter->name();
    whole.names[name] = {hf::name_in_folder(trainee.model_config, name)};
  }
  return whole;
}

checkpoint::FrozenWeights frozen_weights_of(const Trainee& trainee, bool in_whole_files) {
  checkpoint::FrozenWeights frozen;
  if (!trainee.adapter) {
    for (const nn::Parameter* parameter : trainee.model->parameters()) {
      if (!parameter->is_buffer()) continue;
      frozen[parameter] = {hf::name_in_folder(trainee.model_config, parameter->name())};
    }
    return frozen;
  }
  for (const adapters::AdapterTensor& tensor : trainee.adapter->tensors()) {
    if (tensor.parameter->requires_grad()) continue;
    if (!in_whole_files && tensor.parameter->num_new_rows() == 0) continue;
    frozen[tensor.parameter].push_back(tensor.name);
  }
  return frozen;
}

std::string second_names_of(const adapters::LoraAdapter& adapter) {
  std::set<const nn::Parameter*> seen;
  Json names = Json::object();
  for (const adapters::AdapterTensor& tensor : adapter.tensors()) {
    const bool is_first = seen.insert(tensor.parameter).second;
    if (!is_first && tensor.parameter->requires_grad()) {
      names[tensor.name] = tensor.parameter->name();
    }
  }
  return names.empty() ? "" : dump_python(names);
}

}  // namespace strata::train
