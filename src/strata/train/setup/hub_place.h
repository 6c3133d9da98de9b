// Where the names of the settings are looked for on the Hub. Never: looks (hf/hub/model.h).
#pragma once

#include <string>

#include "strata/config/run_config.h"
#include "strata/hf/hub/model.h"

namespace strata::train {

// `name`: the model's or a tokenizer's. Another name than the model's has revisions of its own.
inline hf::HubPlace hub_place(const config::ModelConfig& config, const std::string& name) {
  hf::HubPlace place{.cache = config.cache_dir};
  if (name == config.model_name_or_path) place.revision = config.model_revision;
  return place;
}
inline hf::HubPlace hub_place(const config::ModelConfig& config) {
  return hub_place(config, config.model_name_or_path);
}

// " and revision v1.0", where people asked for another than the main branch.
inline std::string revision_text(const config::ModelConfig& config) {
  const bool is_usual = config.model_revision == hf::HubPlace{}.revision;
  return is_usual ? "" : " and revision " + config.model_revision;
}

}  // namespace strata::train
