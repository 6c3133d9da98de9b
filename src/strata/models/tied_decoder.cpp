#include "strata/models/tied_decoder.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "strata/hf/adapter_files.h"
#include "strata/hf/model_folder.h"
#include "strata/models/reward_head.h"
#include "strata/models/weight_check.h"

namespace strata::models {

std::shared_ptr<nn::Parameter> TiedDecoder::tied_table() const {
  return is_called_tied() && !options_.has_own_head ? table() : nullptr;
}

bool TiedDecoder::ignores(const std::string& tensor) const {
  const auto begins = [&](const std::string& prefix) { return tensor.starts_with(prefix); };
  const auto ends = [&](const std::string& suffix) { return tensor.ends_with(suffix); };
  return std::ranges::any_of(options_.ignored_prefixes, begins) ||
         std::ranges::any_of(options_.ignored_suffixes, ends);
}

bool TiedDecoder::is_called_tied() const {
  return options_.tie_word_embeddings && options_.num_labels == 0;
}

void TiedDecoder::describe_tie(Json& config) const {
  if (is_tied() || options_.num_labels > 0) return;
  config["tie_word_embeddings"] = false;
  if (config.contains("tie_embedding")) config["tie_embedding"] = false;  // LFM2's
}

std::vector<std::string> TiedDecoder::names_of(const std::string& weight) const {
  const std::string& prefix = options_.body_prefix;
  if (prefix.empty() || !weight.starts_with(prefix)) return {weight};
  return {weight, weight.substr(prefix.size())};
}

const hf::TensorInfo* TiedDecoder::find(const hf::ModelFolder& folder,
                                        const std::string& name) const {
  for (const std::string& stored : names_of(name)) {
    if (const hf::TensorInfo* info = find_weight(folder, stored)) return info;
  }
  return nullptr;
}

WeightSources TiedDecoder::check_weights(const hf::ModelFolder& folder) {
  follow_tie(folder);
  const std::string& embedding = table()->name();
  const bool holds_both =
      find(folder, embedding) != nullptr && find(folder, kHeadWeight) != nullptr;
  // The file of a tied model may hold either name, also where an adapter has untied the two since;
  // where it holds both, each of two weights is under its own.
  const bool may_share = options_.tie_word_embeddings && (is_tied() || !holds_both);
  const bool starts_head = options_.num_labels > 0 && lacks_head(folder, options_.num_labels);
  std::vector<ExpectedWeight> expected;
  for (const nn::Parameter* parameter : parameters()) {
    const std::string& name = parameter->name();
    if (name.starts_with(hf::kAdapterKeyPrefix) || (starts_head && name == kRewardWeight)) continue;
    std::vector<std::string> names = names_of(name);
    if (may_share && (name == embedding || name == kHeadWeight)) {
      const std::vector<std::string> others = names_of(name == embedding ? kHeadWeight : embedding);
      names.insert(names.end(), others.begin(), others.end());
    }
    expected.push_back({parameter, std::move(names)});
  }
  std::vector<std::string> ignored = options_.ignored_suffixes;
  std::vector<std::string> heads = options_.ignored_prefixes;
  if (starts_head) {
    ignored.insert(ignored.end(), {kHeadWeight, "lm_head.bias"});
    for (const std::string& name : folder.names()) {
      if (is_token_head_weight(name)) heads.push_back(name);
    }
  }
  return match_weights(folder, expected, ignored, heads);
}

void init_as_decoder(const nn::Parameter& parameter, at::Tensor full, double deviation,
                     at::Generator generator) {
  if (parameter.name().ends_with("bias")) {
    full.zero_();
  } else if (parameter.shape().size() == 1) {
    full.fill_(1.0);
  } else {
    full.normal_(0.0, deviation, std::move(generator));
  }
}

}  // namespace strata::models
