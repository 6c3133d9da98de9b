// Models that look at a whole text: transformers' ...ForSequenceClassification, a decoder with a
// layer "score" in place of the output layer. With one label it gives the text a number (a reward),
// with several it tells classes. Owns: what config.json says of it. Never: the layer itself (each
// family's head), its loss (nn/document_loss.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "strata/base/json.h"

namespace strata::hf {
class ModelFolder;
}

namespace strata::models {

inline constexpr const char* kRewardLayer = "score";
inline constexpr const char* kRewardWeight = "score.weight";
inline constexpr const char* kClassifier = "classifier";  // an encoder's

// Of weights: the layer whose rows are the labels; any of the head; one of the head of another
// model of a family (what predicts tokens), whose place this one takes.
bool is_label_weight(std::string_view weight);
bool is_head_weight(std::string_view weight);
bool is_of_other_head(std::string_view weight);
// What names of the last begin with.
const std::vector<std::string>& other_heads();

// Of a decoder's weights: whether it is one of a head that tells labels of tokens, or of the layer
// in whose place that stands.
bool is_token_head_weight(std::string_view weight);
// The class of a model with such a head, as config.json names it; empty: it is that of another.
std::string token_classifier(const Json& config);

// How many numbers the head of such a model gives, as transformers counts them; 0: config.json is
// that of another.
int64_t num_labels(const Json& config);

// Whether it gives texts a number. ConfigError for a model of several labels.
bool has_reward_head(const Json& config);

// Whether the folder's weights have no such layer of so many labels.
bool lacks_head(const hf::ModelFolder& folder, int64_t labels);

// Makes it that of a model of one number. ConfigError where transformers has none of the family.
void give_reward_head(Json& config);

// What transformers' key problem_type says.
enum class Problem { kClasses, kLabels, kNumbers };

// Makes it that of a model that tells labels of these names, in their order; of kNumbers names may
// be "LABEL_0", .... ConfigError where transformers has none of the family.
void give_labels(Json& config, const std::vector<std::string>& names, Problem problem);

// "LABEL_0", "LABEL_1", ..., as transformers calls labels without names.
std::vector<std::string> plain_label_names(int64_t count);
// Those of id2label in the order of their numbers; plain ones where it has none or not all.
std::vector<std::string> label_names(const Json& config);

// Beside an adapter: what its own files do not say of its labels.
inline constexpr const char* kLabelsFile = "labels.json";
std::string labels_json(const Json& config);

// Makes config.json that of a model of the labels of kLabelsFile in the folder; does nothing where
// there is no folder or no such file. FormatError for a file that holds something else.
void give_labels_beside(const std::filesystem::path& folder, Json& config);

// Makes config.json that of a model whose head has so many labels, called as in kLabelsFile of the
// folder where that is there and has as many. FormatError for a file that holds something else.
void give_labels_of(const std::filesystem::path& folder, int64_t labels, Json& config);

}  // namespace strata::models
