#include "strata/models/registry.h"

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/hf/model_folder.h"
#include "strata/libtorch/vector_math.h"
#include "strata/libtorch/without_onednn.h"
#include "strata/models/config_reader.h"
#include "strata/models/families.h"
#include "strata/models/weight_check.h"

namespace strata::models {
namespace {

// Relatives of families that are here, and what to use in their place.
const std::map<std::string, std::string>& refused_relatives() {
  static const std::map<std::string, std::string> kRefused{
      {"gemma3",
       "which reads images, with its language model in text_config; use a whole config.json"},
      {"gemma3n", "which reads images and sound; use a checkpoint of gemma3_text"}};
  return kRefused;
}

// Whether a model of a family that is here lies inside it.
bool has_text_model(const Json& config) {
  const auto text = config.find("text_config");
  if (text == config.end() || !text->is_object()) return false;
  return families().contains(ConfigReader(*text).text("model_type", ""));
}

// Settings of single layers. Classes of other families than Gemma 4's fail with them.
void refuse_own_layers(const Json& config, const std::string& type) {
  const auto layers = config.find("per_layer_config");
  const bool is_said = layers != config.end() && !layers->is_null() && !layers->empty();
  if (!is_said || type == "gemma4_text") return;
  throw ConfigError(
      "config.json: found per_layer_config in a model of type {}, expected the same settings for "
      "all layers; use another checkpoint",
      type);
}

}  // namespace

std::vector<std::string> supported_model_types() {
  std::vector<std::string> names;
  for (const auto& [name, family] : families()) names.push_back(name);
  return names;
}

bool has_encoder(const Json& config) {
  const auto family = families().find(ConfigReader(config).text("model_type", ""));
  return family != families().end() && family->second.has_encoder;
}

bool is_encoder(const Json& config) {
  const auto family = families().find(ConfigReader(config).text("model_type", ""));
  return family != families().end() && family->second.head_dense != nullptr;
}

bool lacks_head_dense(const hf::ModelFolder& folder) {
  const auto family = families().find(ConfigReader(folder.config()).text("model_type", ""));
  const char* dense = family == families().end() ? nullptr : family->second.head_dense;
  return dense != nullptr && find_weight(folder, dense) == nullptr;
}

bool expert_rows_are_outputs(const Json& config) {
  const std::string type = ConfigReader(config).text("model_type", "");
  const auto family = families().find(type);
  if (family != families().end()) return !family->second.experts_are_transposed;
  throw ConfigError(
      "config.json: found model_type \"{}\" with branches of experts, expected the family of the "
      "base, which says how it holds them; add config.json to the base",
      type);
}

std::vector<ExpertLayerName> expert_layer_names(const Json& config) {
  const auto family = families().find(ConfigReader(config).text("model_type", ""));
  return family == families().end() ? std::vector<ExpertLayerName>{} : family->second.expert_layers;
}

std::optional<PositionTable> position_table(const Json& config) {
  const auto family = families().find(ConfigReader(config).text("model_type", ""));
  if (family == families().end() || family->second.position_table == nullptr) return std::nullopt;
  return family->second.position_table(config);
}

std::string classifier_of(const std::string& model_type) {
  const auto family = families().find(model_type);
  const bool is_known = family != families().end() && family->second.classifier != nullptr;
  return is_known ? family->second.classifier : "";
}

std::unique_ptr<Model> create_model(const Json& config, const ModelOptions& options) {
  const std::string type = ConfigReader(config).text("model_type", "");
  const auto family = families().find(type);
  if (family == families().end() && has_text_model(config)) {
    throw ConfigError(
        "config.json: found model_type \"{}\", a model that reads more than texts, expected one of "
        "{}; take its language model out of it with strata convert FOLDER OUT --to text-model",
        type, fmt::join(supported_model_types(), ", "));
  }
  if (const auto refused = refused_relatives().find(type); refused != refused_relatives().end()) {
    throw ConfigError("config.json: found model_type \"{}\", expected one of {}; it is a family {}",
                      type, fmt::join(supported_model_types(), ", "), refused->second);
  }
  if (family == families().end()) {
    throw ConfigError(
        "config.json: found model_type \"{}\", expected one of {}; use a checkpoint of "
        "one of these families",
        type, fmt::join(supported_model_types(), ", "));
  }
  const bool is_decoder = !family->second.has_encoder && family->second.head_dense == nullptr;
  if (is_decoder && !ConfigReader(config).boolean("is_causal", true)) {
    throw ConfigError(
        "config.json: found is_causal = False, expected True; use a checkpoint of a model whose "
        "tokens see only earlier ones");
  }
  refuse_own_layers(config, type);
  open_vector_math();
  leave_onednn_out();
  return family->second.create(config, options);
}

}  // namespace strata::models
