#include "strata/train/setup/model_config.h"

#include <filesystem>

#include "strata/base/error.h"
#include "strata/base/near_path.h"
#include "strata/config/recipes.h"
#include "strata/hf/hub/model.h"
#include "strata/models/registry.h"
#include "strata/models/reward_head.h"
#include "strata/train/setup/hub_place.h"
#include "strata/train/setup/named_folders.h"

namespace strata::train {

namespace fs = std::filesystem;

Json load_model_config(const config::ModelConfig& config, bool alone) {
  require_one_state(config.model_name_or_path, config.model_revision);
  const auto locate = alone ? hf::locate_model_config : hf::locate_model;
  fs::path path = config.model_name_or_path.empty()
                      ? fs::path(config.config_name)
                      : locate(config.model_name_or_path, hub_place(config), {});
  if (path.empty()) {
    throw ConfigError(
        "model_name_or_path: found nothing, expected a folder with a checkpoint; pass "
        "--model_name_or_path, or --config_name to train from scratch");
  }
  if (!fs::exists(path)) {
    const bool is_hidden = !config.model_name_or_path.empty() && hf::is_offline() &&
                           hf::is_hub_name(config.model_name_or_path);
    throw IoError(
        "{}: found no such folder{}, expected a checkpoint; check the {}{}", path.string(),
        is_hidden ? ", and no model of that name" + revision_text(config) + " in the Hub's cache"
                  : "",
        is_hidden ? "name, or let it be downloaded (HF_HUB_OFFLINE is set)" : "path",
        did_you_mean(path));
  }
  if (!config.model_name_or_path.empty()) require_base_folder(path);
  if (fs::is_directory(path)) path /= "config.json";
  return read_json_file(path);
}

generate::GenerationConfig load_generation_config(const config::ModelConfig& config, bool alone) {
  if (config.model_name_or_path.empty()) return {};
  const auto locate = alone ? hf::locate_generation_config : hf::locate_model;
  const fs::path path = locate(config.model_name_or_path, hub_place(config), {});
  return generate::read_generation_config(fs::is_directory(path) ? path : path.parent_path());
}

void require_recipe_of(const Json& model_config, const config::RunConfig& config) {
  const bool has_encoder = models::has_encoder(model_config);
  if (models::is_encoder(model_config) && !config::recipe_of(config).reads_labels) {
    throw ConfigError(
        "model_name_or_path: found an encoder (model_type \"{}\"), which predicts no tokens, for "
        "the recipe {}, expected {}; run strata classify instead",
        model_config.at("model_type").get<std::string>(), config.recipe,
        config.recipe == "seq2seq" ? "an encoder-decoder model" : "a causal language model");
  }
  const std::string tells_tokens = models::token_classifier(model_config);
  if (!tells_tokens.empty() && !config::recipe_of(config).judges_documents()) {
    throw ConfigError(
        "model_name_or_path: found {}, whose head labels tokens, for the recipe {}, expected a "
        "model that predicts tokens; start from the one that it was made from, or run strata "
        "classify instead",
        tells_tokens, config.recipe);
  }
  const int64_t labels = models::num_labels(model_config);
  if (labels > 0 && !config::recipe_of(config).judges_documents()) {
    throw ConfigError(
        "model_name_or_path: found a model that gives texts a {} for the recipe {}, expected one "
        "that predicts tokens; run strata {} instead",
        labels == 1 ? "reward" : "label", config.recipe, labels == 1 ? "reward" : "classify");
  }
  if (has_encoder == config::recipe_of(config).has_encoder) return;
  throw ConfigError(
      "model_name_or_path: found {} for the recipe {}, expected {}; run strata {} instead",
      has_encoder ? "an encoder-decoder model" : "a model without an encoder",
      has_encoder ? config.recipe : "seq2seq",
      has_encoder ? "a causal language model" : "one that has it", has_encoder ? "seq2seq" : "sft");
}

}  // namespace strata::train
