// A schema made of the table.
#include "strata/config/schema.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/config/field_access.h"
#include "strata/config/field_text.h"
#include "strata/config/value.h"

namespace strata::config {
namespace {

using Words = std::vector<std::string>;

const Words& boolean_words() {
  static const Words kWords = {"yes", "true", "t", "y", "on", "no", "false", "f", "n", "off"};
  return kWords;
}

// An expression for the word in any case.
std::string caseless(std::string_view word) {
  std::string pattern;
  for (const char c : word) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalpha(byte)) {
      pattern += fmt::format("[{}{}]", static_cast<char>(std::tolower(byte)),
                             static_cast<char>(std::toupper(byte)));
    } else if (std::isdigit(byte) || c == '_') {
      pattern += c;
    } else {
      pattern += fmt::format("\\{}", c);
    }
  }
  return pattern;
}

Json text_like(const std::string& pattern) {
  return {{"type", "string"}, {"pattern", "^(" + pattern + ")$"}};
}

Json text_among(const Words& words) {
  Words patterns;
  for (const std::string& word : words) patterns.push_back(caseless(word));
  return text_like(fmt::format("{}", fmt::join(patterns, "|")));
}

// The number that the whole text is.
std::optional<double> number_in(std::string_view text) {
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && stop == text.data() + text.size() ? std::optional(number)
                                                                   : std::nullopt;
}

// What programs that read YAML make of such words: text, booleans, numbers.
void append_words(Json& forms, const Words& words) {
  if (words.empty()) return;
  forms.push_back(text_among(words));
  Json values = Json::array();
  for (const std::string& word : words) {
    const std::optional<bool> flag = parse_boolean(word);
    if (flag && std::ranges::find(values, Json(*flag)) == values.end()) values.push_back(*flag);
    if (const auto number = number_in(word)) values.push_back(*number);
  }
  if (!values.empty()) forms.push_back({{"enum", values}});
}

void append_boolean(Json& forms) {
  forms.push_back({{"type", "boolean"}});
  forms.push_back(text_among(boolean_words()));
  forms.push_back({{"enum", {0, 1, "0", "1"}}});
}

void append_number(Json& forms, const Range& range, bool is_integer) {
  Json number = {{"type", is_integer ? "integer" : "number"}};
  if (std::isfinite(range.min)) number["minimum"] = range.min;
  if (std::isfinite(range.max)) {
    number[range.max_open ? "exclusiveMaximum" : "maximum"] = range.max;
  }
  forms.push_back(std::move(number));
  forms.push_back(
      text_like(is_integer ? "-?[0-9]+" : "-?([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][-+]?[0-9]+)?"));
}

void append_any_text(Json& forms) {
  // A mapping becomes one text.
  forms.push_back({{"type", {"string", "number", "boolean", "object"}}});
}

void append_texts(Json& forms, const Setting& setting) {
  const auto choices = choices_of(setting);
  if (choices.empty()) return append_any_text(forms);
  Words words(choices.begin(), choices.end());
  if (is_empty_by_default(setting)) words.emplace_back();
  forms.push_back({{"enum", words}});
  for (const auto& [spelling, meaning] : setting.synonyms) words.emplace_back(spelling);
  append_words(forms, words);
  if (std::isfinite(setting.range.min)) append_number(forms, setting.range, /*is_integer=*/true);
}

void append_list(Json& forms) {
  const Json item = {{"type", {"string", "number", "boolean"}}};
  forms.push_back({{"type", "array"}, {"items", item}});
  forms.push_back(item);
}

// By the type of the field.
void append_field(Json& forms, const Setting& setting) {
  visit_field(setting, RunConfig{}, [&](const auto& field) {
    using Field = std::decay_t<decltype(field)>;
    using T = typename OptionalTraits<Field>::Value;
    if constexpr (OptionalTraits<Field>::kIsOptional) {
      append_words(forms, {"none", "null"});
    }
    if constexpr (std::is_same_v<T, bool>) {
      append_boolean(forms);
    } else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, ChoiceField>) {
      append_texts(forms, setting);
      if (setting.is_switch) append_boolean(forms);
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      append_list(forms);
    } else {
      append_number(forms, setting.range, std::is_integral_v<T>);
    }
  });
}

Json accepted_forms(const Setting& setting) {
  Json forms = Json::array();
  if (setting.kind == Kind::kBound) {
    append_field(forms, setting);
  } else {
    if (is_switch(setting)) append_boolean(forms);
    if (!is_switch(setting) || !choices_of(setting).empty()) append_texts(forms, setting);
  }
  if (setting.name == "fsdp") append_list(forms);
  forms.push_back({{"$ref", "#/definitions/not_set"}});
  return forms;
}

std::string description_of(const Setting& setting) {
  std::string text(setting.help);
  if (setting.kind == Kind::kBound) text += fmt::format(" ({})", expectation(setting));
  return text;
}

Json property_of(const Setting& setting) {
  Json property = {{"description", description_of(setting)}, {"anyOf", accepted_forms(setting)}};
  if (setting.kind == Kind::kBound) property["default"] = field_json(setting, RunConfig{});
  return property;
}

}  // namespace

Json settings_schema() {
  Json properties = Json::object(), unsupported = Json::object();
  for (const Setting& setting : settings_table()) {
    if (setting.name == "config") continue;  // a file names no further one
    if (setting.kind == Kind::kUnbound) {
      // Not among the properties, which editors offer; which values are accepted, the program says.
      Words names{std::string(setting.name)};
      names.insert(names.end(), setting.aliases.begin(), setting.aliases.end());
      unsupported[fmt::format("^({})$", fmt::join(names, "|"))] = {
          {"description", fmt::format("not supported: {}", setting.help)}};
      continue;
    }
    Json property = property_of(setting);
    for (const std::string_view alias : setting.aliases) {
      Json same = property;
      same["description"] = fmt::format("the same as {}: {}", setting.name,
                                        property["description"].get<std::string>());
      properties[std::string(alias)] = std::move(same);
    }
    properties[std::string(setting.name)] = std::move(property);
  }
  properties["<<"] = {{"description", "mappings whose keys are used where they are not set here"},
                      {"type", {"object", "array"}}};
  unsupported["-"] = {{"description", "hyphens stand for underscores"}};
  return {{"$schema", "http://json-schema.org/draft-07/schema#"},
          {"title", "Settings of a run of Strata"},
          {"type", "object"},
          {"properties", std::move(properties)},
          {"patternProperties", std::move(unsupported)},
          {"additionalProperties", false},
          {"definitions", {{"not_set", {{"type", {"null", "object"}}, {"maxProperties", 0}}}}}};
}

}  // namespace strata::config
