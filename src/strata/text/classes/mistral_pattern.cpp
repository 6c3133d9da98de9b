#include "strata/text/classes/mistral_pattern.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

#include "strata/text/classes/builder.h"

namespace strata::text {
namespace {

constexpr int64_t kMostTokensOfOthers = 100000;

constexpr const char* kRightPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// By "4.57.1" and the like; without one it counts as old.
bool is_from_version_5(const Json& config) {
  const Json version = config.value("transformers_version", Json());
  return version.is_string() && std::atoi(version.get<std::string>().c_str()) >= 5;
}

bool is_type(const Json& component, std::string_view type) {
  return component.is_object() && component.contains("type") && component["type"] == type;
}

}  // namespace

bool may_have_wrong_pattern(const Json& model_config, int64_t num_tokens) {
  if (num_tokens <= kMostTokensOfOthers || !model_config.is_object()) return false;
  if (is_from_version_5(model_config)) return false;
  const Json type = model_config.value("model_type", Json());
  constexpr std::array<std::string_view, 5> kTypes = {"mistral", "mistral3", "voxtral", "ministral",
                                                      "pixtral"};
  return !type.is_string() || std::ranges::find(kTypes, type.get<std::string>()) != kTypes.end();
}

Json with_right_pattern(Json pre_tokenizer) {
  Json split = split_regex(kRightPattern, "Isolated");
  if (is_type(pre_tokenizer, "Sequence") && pre_tokenizer.contains("pretokenizers")) {
    Json& steps = pre_tokenizer["pretokenizers"];
    if (steps.is_array() && !steps.empty()) steps[0] = std::move(split);
    return pre_tokenizer;
  }
  if (is_type(pre_tokenizer, "Metaspace")) {
    pre_tokenizer = byte_level(/*add_prefix_space=*/false, /*use_regex=*/false);
  }
  return pre_tokenizers({std::move(split), std::move(pre_tokenizer)});
}

}  // namespace strata::text
