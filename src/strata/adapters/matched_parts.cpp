#include "strata/adapters/matched_parts.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "strata/adapters/expert_targets.h"
#include "strata/adapters/lora_init.h"
#include "strata/adapters/target_parameters.h"
#include "strata/adapters/token_embedding.h"
#include "strata/nn/linear.h"

namespace strata::adapters {
namespace {

// Whether embedding or output layer has something of its own.
bool adapts_vocabulary(const TargetLayers& targets, const std::optional<TrainedTokens>& tokens) {
  const bool targets_head =
      std::any_of(targets.layers.begin(), targets.layers.end(),
                  [](const nn::Linear* layer) { return layer->path() == "lm_head"; });
  return targets.embedding != nullptr || targets_head || (tokens && tokens->is_output_alone);
}

}  // namespace

MatchedParts match_parts(const LoraOptions& options, models::Model& model) {
  MatchedParts parts;
  parts.targets = find_targets(options, model);
  require_computed_on_experts(options, parts.targets.layers, model);
  parts.expert_parameters = find_target_parameters(options, model);
  parts.saved = weights_to_save(options, model);
  parts.was_tied = is_tied(model);
  return parts;
}

std::vector<std::string> target_modules_to_save(const LoraOptions& options,
                                                const TargetLayers& targets) {
  if (targets.list.empty() && options.target_pattern) return {*options.target_pattern};
  return targets.list;
}

std::vector<std::string> notes_on(const LoraOptions& options, models::Model& model,
                                  const MatchedParts& parts,
                                  const std::optional<TrainedTokens>& tokens) {
  std::vector<std::string> notes =
      notes_on_ties(options, adapts_vocabulary(parts.targets, tokens), parts.saved, parts.was_tied);
  if (const auto whole = targets_that_train_whole(options, model); !whole.empty()) {
    notes.push_back(
        fmt::format("target_modules: {} has no branch, it trains whole (modules_to_save)",
                    fmt::join(whole, ", ")));
  }
  if (options.fan_in_fan_out &&
      std::ranges::none_of(parts.targets.layers, [](const nn::Linear* layer) {
        return layer->weight().is_transposed();
      })) {
    notes.push_back(
        "fan_in_fan_out: has no effect, the layers store [out, in]; PEFT sets it to false too");
  }
  if (draws_directions(options)) {
    notes.push_back(fmt::format(
        "init_lora_weights: {} searches from random directions, which no file holds; before it is "
        "merged or answers the adapter is written as a plain LoRA with strata convert --to lora, "
        "which needs the adapter of a run with the same seed and a learning_rate of 0",
        options.init));
  }
  return notes;
}

}  // namespace strata::adapters
