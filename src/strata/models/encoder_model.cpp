#include "strata/models/encoder_model.h"

#include <algorithm>

#include "strata/hf/adapter_files.h"
#include "strata/hf/model_folder.h"
#include "strata/models/registry.h"
#include "strata/models/reward_head.h"
#include "strata/models/weight_check.h"

namespace strata::models {
namespace {

bool is_of(const std::string& module, const std::string& weight) {
  return weight.starts_with(module + ".");
}

}  // namespace

bool EncoderModel::is_of_dense(const std::string& weight) const {
  return std::ranges::any_of(options_.dense,
                             [&](const std::string& module) { return is_of(module, weight); });
}

bool EncoderModel::is_of_document_head(const std::string& weight) const {
  return is_of(options_.classifier, weight) || (options_.has_new_dense && is_of_dense(weight));
}

// The first layer of the head, where it begins anew: what is drawn becomes no codes.
std::vector<std::string> EncoderModel::never_quantized() const {
  return options_.has_new_dense ? std::vector<std::string>{options_.dense_ending}
                                : std::vector<std::string>{};
}

bool EncoderModel::ignores(const std::string& tensor) const {
  return is_of_other_head(tensor) ||
         std::ranges::any_of(options_.ignored_suffixes,
                             [&](const std::string& suffix) { return tensor.ends_with(suffix); });
}

WeightSources EncoderModel::check_weights(const hf::ModelFolder& folder) {
  const bool starts_head = lacks_head(folder, options_.num_labels);
  const bool starts_dense = starts_head && lacks_head_dense(folder);
  std::vector<ExpectedWeight> expected;
  for (const nn::Parameter* parameter : parameters()) {
    const std::string& name = parameter->name();
    if (name.starts_with(hf::kAdapterKeyPrefix)) continue;
    if (starts_head && is_of(options_.classifier, name)) continue;
    if (starts_dense && is_of_dense(name)) continue;
    expected.push_back({parameter, {name}});
  }
  std::vector<std::string> heads = other_heads();
  if (starts_head) heads.emplace_back("classifier.");
  return match_weights(folder, expected, options_.ignored_suffixes, heads);
}

}  // namespace strata::models
