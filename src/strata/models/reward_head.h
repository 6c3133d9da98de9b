// Models that give a text a reward: transformers' ...ForSequenceClassification with one label, a
// decoder with a layer "score" in place of the output layer. Owns: what config.json says of it.
// Never: the layer itself (each family's head), its loss (nn/reward_loss.h).
#pragma once

#include <string>

#include "strata/base/json.h"

namespace strata::hf {
class ModelFolder;
}

namespace strata::models {

inline constexpr const char* kRewardLayer = "score";
inline constexpr const char* kRewardWeight = "score.weight";

// Whether config.json is that of such a model. ConfigError for one of several labels.
bool has_reward_head(const Json& config);

// Whether the folder's weights are those of another model of the family, which lack the layer.
bool lacks_reward_head(const hf::ModelFolder& folder);

// Makes it that of such a model. ConfigError where transformers has none of the family.
void give_reward_head(Json& config);

}  // namespace strata::models
