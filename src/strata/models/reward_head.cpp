#include "strata/models/reward_head.h"

#include <algorithm>

#include "strata/base/error.h"
#include "strata/hf/model_folder.h"
#include "strata/models/config_reader.h"
#include "strata/models/registry.h"

namespace strata::models {
namespace {

constexpr std::string_view kEnding = "ForSequenceClassification";

// Of encoders: classifiers of all kinds, BERT's, DeBERTa's, DistilBERT's, ModernBERT's and
// EuroBERT's layers before it.
constexpr std::string_view kHeads[] = {"classifier.", "albert.pooler.",  "bert.pooler.",
                                       "pooler.",     "pre_classifier.", "head.",
                                       "dense."};

bool begins_with_any(std::string_view weight, const auto& beginnings) {
  return std::ranges::any_of(beginnings,
                             [&](std::string_view each) { return weight.starts_with(each); });
}

// The first class that config.json names; empty: none.
std::string class_of(const Json& config) {
  const auto found = config.find("architectures");
  const bool is_there =
      found != config.end() && found->is_array() && !found->empty() && found->front().is_string();
  return is_there ? found->front().get<std::string>() : "";
}

bool is_classifier(const Json& config) { return class_of(config).ends_with(kEnding); }

void give_head(Json& config, const std::vector<std::string>& names, std::string_view recipe) {
  const std::string type = ConfigReader(config).text("model_type", "");
  const std::string name = classifier_of(type);
  if (name.empty()) {
    throw ConfigError(
        "model_name_or_path: found model_type \"{}\" for the recipe {}, expected a family that "
        "reward models and classifiers can be made of; choose one of those in "
        "docs/guide/preferences.md",
        type, recipe);
  }
  config["architectures"] = Json::array({name});
  Json id2label = Json::object(), label2id = Json::object();
  for (size_t i = 0; i < names.size(); ++i) {
    id2label[std::to_string(i)] = names[i];
    label2id[names[i]] = i;
  }
  config["id2label"] = std::move(id2label);
  config["label2id"] = std::move(label2id);
  config.erase("num_labels");
}

}  // namespace

bool is_label_weight(std::string_view weight) {
  return weight == kRewardWeight || weight == "classifier.weight" ||
         weight == "classifier.out_proj.weight";
}

bool is_head_weight(std::string_view weight) {
  return weight == kRewardWeight || begins_with_any(weight, kHeads);
}

const std::vector<std::string>& other_heads() {
  static const std::vector<std::string> kOtherHeads{"cls.",
                                                    "decoder.bias",
                                                    "decoder.weight",
                                                    "discriminator_predictions.",
                                                    "generator_lm_head.",
                                                    "generator_predictions.",
                                                    "lm_head.",
                                                    "lm_predictions.",
                                                    "mask_predictions.",
                                                    "mpnet.pooler.",
                                                    "predictions.",
                                                    "qa_outputs.",
                                                    "roberta.pooler.",
                                                    "sop_classifier.",
                                                    "vocab_transform.",
                                                    "vocab_layer_norm.",
                                                    "vocab_projector."};
  return kOtherHeads;
}

bool is_of_other_head(std::string_view weight) { return begins_with_any(weight, other_heads()); }

bool is_token_head_weight(std::string_view weight) {
  return weight.starts_with("score.") || weight.starts_with("classifier.");
}

std::string token_classifier(const Json& config) {
  const std::string name = class_of(config);
  return name.ends_with("ForTokenClassification") ? name : "";
}

int64_t num_labels(const Json& config) {
  if (!is_classifier(config)) return 0;
  const auto labels = config.find("id2label");
  if (labels != config.end() && labels->is_object()) return static_cast<int64_t>(labels->size());
  const auto count = config.find("num_labels");
  // As transformers counts them: two where nothing is said.
  return count != config.end() && count->is_number_unsigned() ? count->get<int64_t>() : 2;
}

bool has_reward_head(const Json& config) {
  const int64_t labels = num_labels(config);
  if (labels > 1) {
    throw ConfigError(
        "config.json: found {} of {} labels, expected a model that gives one number (one entry in "
        "id2label); start from a causal language model",
        config.at("architectures").front().get<std::string>(), labels);
  }
  return labels == 1;
}

bool lacks_head(const hf::ModelFolder& folder, int64_t labels) {
  return num_labels(folder.config()) != labels;
}

void give_reward_head(Json& config) {
  if (!has_reward_head(config)) give_head(config, plain_label_names(1), "reward");
}

void give_labels(Json& config, const std::vector<std::string>& names, Problem problem) {
  give_head(config, names, "classify");
  config["problem_type"] = problem == Problem::kClasses  ? "single_label_classification"
                           : problem == Problem::kLabels ? "multi_label_classification"
                                                         : "regression";
}

std::vector<std::string> plain_label_names(int64_t count) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < count; ++i) names.push_back("LABEL_" + std::to_string(i));
  return names;
}

std::vector<std::string> label_names(const Json& config) {
  std::vector<std::string> names = plain_label_names(num_labels(config));
  const auto labels = config.find("id2label");
  if (labels == config.end() || !labels->is_object()) return names;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto name = labels->find(std::to_string(i));
    if (name == labels->end() || !name->is_string()) {
      return plain_label_names(static_cast<int64_t>(names.size()));
    }
    names[i] = name->get<std::string>();
  }
  return names;
}

std::string labels_json(const Json& config) {
  Json labels = Json::object();
  for (const char* key : {"id2label", "label2id", "problem_type"}) {
    if (config.contains(key)) labels[key] = config.at(key);
  }
  return dump_python(labels) + "\n";
}

static int64_t count_labels(const Json& said) {
  return static_cast<int64_t>(said.at("id2label").size());
}

static void give_said(const Json& said, Json& config) {
  const int64_t labels = count_labels(said);
  if (num_labels(config) != labels) give_head(config, plain_label_names(labels), "classify");
  config.update(said);
}

// Null: the folder has none.
static Json read_labels(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kLabelsFile;
  if (folder.empty() || !std::filesystem::is_regular_file(file)) return {};
  Json said = read_json_file(file);
  const bool is_sound = said.is_object() && said.contains("id2label") &&
                        said.at("id2label").is_object() && said.contains("label2id") &&
                        said.at("label2id").is_object();
  if (is_sound) return said;
  throw FormatError("{}: found something else than id2label and label2id, expected both; remove it",
                    file.string());
}

void give_labels_beside(const std::filesystem::path& folder, Json& config) {
  if (const Json said = read_labels(folder); !said.is_null()) give_said(said, config);
}

void give_labels_of(const std::filesystem::path& folder, int64_t labels, Json& config) {
  if (const Json said = read_labels(folder); !said.is_null() && count_labels(said) == labels) {
    return give_said(said, config);
  }
  if (num_labels(config) == labels) return;
  if (labels == 1) return give_head(config, plain_label_names(1), "reward");
  give_labels(config, plain_label_names(labels), Problem::kClasses);
}

}  // namespace strata::models
