#include "strata/models/tied_decoder.h"

#include "strata/hf/adapter_files.h"
#include "strata/hf/model_folder.h"
#include "strata/models/reward_head.h"
#include "strata/models/weight_check.h"

namespace strata::models {
namespace {

constexpr const char* kHeadWeight = "lm_head.weight";

}  // namespace

void TiedDecoder::untie() {
  output_layer().set_weight(untied_copy(kHeadWeight, *table(), storage_));
}

bool TiedDecoder::untie(const std::string& name) {
  if (!is_tied() || (name != table()->name() && name != kHeadWeight)) return false;
  untie();
  return true;
}

bool TiedDecoder::is_called_tied() const {
  return options_.tie_word_embeddings && !options_.scores_documents;
}

void TiedDecoder::describe_tie(Json& config) const {
  if (!is_tied() && !options_.scores_documents) config["tie_word_embeddings"] = false;
}

bool TiedDecoder::follow_tie(const hf::ModelFolder& folder) {
  const hf::TensorInfo* embedding = folder.find(table()->name());
  const hf::TensorInfo* head = folder.find(kHeadWeight);
  if (!is_tied() || embedding == nullptr || head == nullptr ||
      same_values(folder, *embedding, *head)) {
    return false;
  }
  untie();
  return true;
}

WeightSources TiedDecoder::check_weights(const hf::ModelFolder& folder) {
  follow_tie(folder);
  const std::string& embedding = table()->name();
  const bool holds_both = folder.find(embedding) != nullptr && folder.find(kHeadWeight) != nullptr;
  const bool may_share = options_.tie_word_embeddings && (is_tied() || !holds_both);
  const bool starts_head = options_.scores_documents && lacks_reward_head(folder);
  std::vector<ExpectedWeight> expected;
  for (const nn::Parameter* parameter : parameters()) {
    const std::string& name = parameter->name();
    if (name.starts_with(hf::kAdapterKeyPrefix) || (starts_head && name == kRewardWeight)) continue;
    expected.push_back({parameter, {name}});
    // The file of a tied model may hold either name.
    if (may_share && name == embedding) expected.back().names.push_back(kHeadWeight);
    if (may_share && name == kHeadWeight) expected.back().names.push_back(embedding);
  }
  std::vector<std::string> ignored = options_.ignored_suffixes;
  if (starts_head) ignored.push_back(kHeadWeight);
  return match_weights(folder, expected, ignored);
}

}  // namespace strata::models
