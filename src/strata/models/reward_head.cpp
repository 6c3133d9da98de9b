#include "strata/models/reward_head.h"

#include "strata/base/error.h"
#include "strata/hf/model_folder.h"
#include "strata/models/config_reader.h"
#include "strata/models/registry.h"

namespace strata::models {
namespace {

constexpr std::string_view kEnding = "ForSequenceClassification";

bool is_classifier(const Json& config) {
  const auto found = config.find("architectures");
  return found != config.end() && found->is_array() && !found->empty() &&
         found->front().is_string() &&
         std::string_view(found->front().get_ref<const std::string&>()).ends_with(kEnding);
}

// As transformers counts them: two where nothing is said.
size_t num_labels(const Json& config) {
  const auto labels = config.find("id2label");
  if (labels != config.end() && labels->is_object()) return labels->size();
  const auto count = config.find("num_labels");
  return count != config.end() && count->is_number_unsigned() ? count->get<size_t>() : 2;
}

}  // namespace

bool has_reward_head(const Json& config) {
  if (!is_classifier(config)) return false;
  if (const size_t labels = num_labels(config); labels != 1) {
    throw ConfigError(
        "config.json: found {} of {} labels, expected a model that gives one number (one entry in "
        "id2label); start from a causal language model",
        config.at("architectures").front().get<std::string>(), labels);
  }
  return true;
}

bool lacks_reward_head(const hf::ModelFolder& folder) { return !has_reward_head(folder.config()); }

void give_reward_head(Json& config) {
  if (has_reward_head(config)) return;
  const std::string type = ConfigReader(config).text("model_type", "");
  const std::string name = classifier_of(type);
  if (name.empty()) {
    throw ConfigError(
        "model_name_or_path: found model_type \"{}\" for the recipe reward, expected a family "
        "whose "
        "reward models are known here; choose one of those of docs/guide/preferences.md",
        type);
  }
  config["architectures"] = Json::array({name});
  config["id2label"] = Json{{"0", "LABEL_0"}};
  config["label2id"] = Json{{"LABEL_0", 0}};
  config.erase("num_labels");
}

}  // namespace strata::models
