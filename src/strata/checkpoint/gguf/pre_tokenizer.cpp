#include "strata/checkpoint/gguf/pre_tokenizer.h"

#include <algorithm>
#include <vector>

#include "strata/base/error.h"

namespace strata::checkpoint {
namespace {

using text::TokenizerParts;

constexpr const char* kMark = "▁";

// A pattern of tokenizer.json and whether the model takes words of the vocabulary whole, whatever
// its merges.
struct Rule {
  const char* name;
  bool ignores_merges;
  const char* pattern;
};

// As published models write them. What the rules of llama.cpp do is in its llama-vocab.cpp.
constexpr const char* kThreeDigits =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kOneDigit = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                                  R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr Rule kRules[] = {
    {"llama-bpe", true, kThreeDigits}, {"dbrx", false, kThreeDigits}, {"qwen2", false, kOneDigit},
    {"tekken", true, kTekken},         {"gpt-4o", false, kGpt4o},
};

std::string type_of(const Json& component) {
  if (!component.is_object()) return "";
  const Json type = component.value("type", Json());
  return type.is_string() ? type.get<std::string>() : "";
}

// The steps of a component, those of a Sequence one by one.
std::vector<Json> steps_of(const Json& component, const char* list) {
  if (component.is_null()) return {};
  if (type_of(component) != "Sequence") return {component};
  std::vector<Json> steps;
  for (const Json& step : component.value(list, Json::array())) {
    for (Json& inner : steps_of(step, list)) steps.push_back(std::move(inner));
  }
  return steps;
}

std::vector<Json> pre_tokenizers(const TokenizerParts& parts) {
  return steps_of(parts.pre_tokenizer, "pretokenizers");
}

bool is_on(const Json& component, const char* key, bool fallback) {
  const Json value = component.value(key, Json());
  return value.is_boolean() ? value.get<bool>() : fallback;
}

[[noreturn]] void refuse(const TokenizerParts& parts, const char* what, const Json& found,
                         const std::string& expected) {
  throw FormatError(
      "{}: found {} {}, expected {}, as llama.cpp cuts texts in no other way; "
      "use a tokenizer of that kind",
      parts.subject, what, dump_python(found, /*indent=*/-1, true, false), expected);
}

bool splits_by(const Json& step) {
  if (type_of(step) != "Split") return false;
  const Json behavior = step.value("behavior", Json());
  const bool is_inverted = is_on(step, "invert", false);
  // The patterns match every character of a text, so that what they part and what they find is one.
  return is_inverted ? behavior == "Removed" : behavior == "Isolated";
}

std::string pattern_of(const Json& step) {
  const Json pattern = step.value("pattern", Json::object()).value("Regex", Json());
  return pattern.is_string() ? pattern.get<std::string>() : "";
}

void require_no_normalizer(const TokenizerParts& parts) {
  for (const Json& step : steps_of(parts.normalizer, "normalizers")) {
    if (type_of(step) != "NFC") refuse(parts, "normalizer", parts.normalizer, "none or NFC");
  }
}

bool is_replacement_of_spaces(const Json& step) {
  return type_of(step) == "Replace" && step.value("pattern", Json()) == Json({{"String", " "}}) &&
         step.value("content", Json()) == kMark;
}

SpacePrefix prefix_of_metaspace(const TokenizerParts& parts, const Json& step) {
  if (step.value("replacement", Json(kMark)) != kMark || is_on(step, "split", true)) {
    refuse(parts, "pre_tokenizer", parts.pre_tokenizer, "a Metaspace of ▁ that splits nothing");
  }
  const bool is_asked = is_on(step, "add_prefix_space", true);
  const Json scheme = step.value("prepend_scheme", Json(is_asked ? "always" : "never"));
  if (scheme == "never") return SpacePrefix::kNever;
  return scheme == "first" ? SpacePrefix::kAtTheStart : SpacePrefix::kBehindTokensToo;
}

// Cutting at spaces does nothing where the normalizer left none.
bool cuts_at_spaces(const Json& step) {
  return type_of(step) == "Split" && step.value("pattern", Json()) == Json({{"String", " "}});
}

}  // namespace

bool has_byte_level(const TokenizerParts& parts) {
  return std::ranges::any_of(pre_tokenizers(parts),
                             [](const Json& step) { return type_of(step) == "ByteLevel"; });
}

std::string pre_tokenizer_name(const TokenizerParts& parts) {
  require_no_normalizer(parts);
  const std::vector<Json> steps = pre_tokenizers(parts);
  const Json& last = steps.back();
  const char* const kKnown =
      "the pattern of GPT-2, GPT-4o, Llama 3, Mistral Nemo (tekken), Phi-4, Qwen2 or SmolLM";
  if (type_of(last) != "ByteLevel" || is_on(last, "add_prefix_space", true)) {
    refuse(parts, "pre_tokenizer", parts.pre_tokenizer,
           "a ByteLevel without add_prefix_space as its last step");
  }
  const bool ignores_merges = is_on(parts.model, "ignore_merges", false);
  if (is_on(last, "use_regex", true) && !ignores_merges) {
    if (steps.size() == 1) return "gpt-2";
    const bool cuts_digits = steps.size() == 2 && type_of(steps[0]) == "Digits" &&
                             is_on(steps[0], "individual_digits", false);
    if (cuts_digits) return "smollm";
  }
  if (!is_on(last, "use_regex", true) && steps.size() == 2 && splits_by(steps[0])) {
    const std::string pattern = pattern_of(steps[0]);
    for (const Rule& rule : kRules) {
      if (rule.pattern == pattern && rule.ignores_merges == ignores_merges) return rule.name;
    }
  }
  refuse(parts, ignores_merges ? "with ignore_merges the pre_tokenizer" : "pre_tokenizer",
         parts.pre_tokenizer, kKnown);
}

SpacePrefix space_prefix(const TokenizerParts& parts) {
  const std::vector<Json> normalizers = steps_of(parts.normalizer, "normalizers");
  const std::vector<Json> cuts = pre_tokenizers(parts);
  if (normalizers.empty() && cuts.size() == 1 && type_of(cuts[0]) == "Metaspace") {
    return prefix_of_metaspace(parts, cuts[0]);
  }
  if (!std::ranges::all_of(cuts, cuts_at_spaces)) {
    refuse(parts, "pre_tokenizer", parts.pre_tokenizer, "none, or a Metaspace that splits nothing");
  }
  const bool prepends = normalizers.size() == 2 && type_of(normalizers[0]) == "Prepend" &&
                        normalizers[0].value("prepend", Json()) == kMark;
  const bool is_known =
      (prepends || normalizers.size() == 1) && is_replacement_of_spaces(normalizers.back());
  if (!is_known) {
    refuse(parts, "normalizer", parts.normalizer, "one that writes ▁ for spaces and nothing else");
  }
  return prepends ? SpacePrefix::kBehindTokensToo : SpacePrefix::kNever;
}

}  // namespace strata::checkpoint
