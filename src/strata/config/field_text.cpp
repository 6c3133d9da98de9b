#include "strata/config/field_text.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/config/field_access.h"

namespace strata::config {
namespace {

template <typename T>
bool holds(const Setting& setting) {
  return std::holds_alternative<T& (*)(RunConfig&)>(setting.field);
}

std::string text_of(const std::string& value) { return value; }
std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(int value) { return std::to_string(value); }
std::string text_of(int64_t value) { return std::to_string(value); }
std::string text_of(uint64_t value) { return std::to_string(value); }
std::string text_of(double value) { return python_float_repr(value); }
std::string text_of(const std::vector<std::string>& value) {
  return fmt::format("{}", fmt::join(value, ","));
}
template <typename T>
std::string text_of(const std::optional<T>& value) {
  return value ? text_of(*value) : "none";
}

std::string number_expectation(std::string_view noun, const Range& range) {
  const bool has_max = std::isfinite(range.max);
  if (!std::isfinite(range.min) && !has_max) return std::string(noun);
  if (!has_max) return fmt::format("{} of at least {}", noun, range.min);
  return fmt::format("{} in [{}, {}{}", noun, range.min, range.max, range.max_open ? ")" : "]");
}

std::string harmless_values(const Setting& setting) {
  std::vector<std::string> texts;
  for (const std::string_view value : setting.harmless) {
    if (value == "*") return "any value";
    texts.push_back(value.empty() ? "\"\"" : std::string(value));
  }
  return fmt::format("{}", fmt::join(texts, " or "));
}

// By the type of the field alone.
std::string field_expectation(const Setting& setting) {
  return visit_field(setting, RunConfig{}, [&](const auto& field) -> std::string {
    using T = typename OptionalTraits<std::decay_t<decltype(field)>>::Value;
    if constexpr (std::is_same_v<T, bool>) {
      return "true or false";
    } else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, ChoiceField>) {
      return "text";
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      return "a list of names";
    } else if constexpr (std::is_same_v<T, double>) {
      return number_expectation("a number", setting.range);
    } else {
      Range range = setting.range;
      if constexpr (std::is_same_v<T, uint64_t>) range.min = std::max(range.min, 0.0);
      // Where a number stands for a limit, none is another value, and 0 is not.
      return number_expectation("an integer", range) +
             (setting.null_means == "none" ? ", or none" : "");
    }
  });
}

}  // namespace

bool is_switch(const Setting& setting) {
  return setting.is_switch || holds<bool>(setting) || holds<std::optional<bool>>(setting);
}

bool is_list(const Setting& setting) { return holds<std::vector<std::string>>(setting); }

bool is_true_by_default(const Setting& setting) {
  if (setting.kind == Kind::kBound) {
    return is_switch(setting) && field_text(setting, RunConfig{}) == "true";
  }
  return setting.is_switch && !setting.harmless.empty() && setting.harmless.front() == "true";
}

std::string field_text(const Setting& setting, const RunConfig& config) {
  return visit_field(setting, config, [&](const auto& field) {
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, ChoiceField>) {
      return std::string(field.get(config));
    } else {
      return text_of(field);
    }
  });
}

Json field_json(const Setting& setting, const RunConfig& config) {
  return visit_field(setting, config, [&](const auto& field) -> Json {
    using T = std::decay_t<decltype(field)>;
    if constexpr (std::is_same_v<T, ChoiceField>) {
      return field.get(config);
    } else if constexpr (OptionalTraits<T>::kIsOptional) {
      if (field) return *field;
      // In a file null means that nobody gave the setting, unless it says otherwise.
      const bool is_null =
          setting.null_means == "none" || field_text(setting, RunConfig{}) == "none";
      return is_null ? Json() : Json("none");
    } else {
      // A list that tells [] from null has null for its default.
      if (is_list(setting) && Json(field).empty() && !setting.synonyms.empty()) return {};
      return field;
    }
  });
}

bool is_empty_by_default(const Setting& setting) {
  if (std::holds_alternative<std::monostate>(setting.field)) return false;
  return visit_field(setting, RunConfig{}, [](const auto& field) {
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, std::string>) {
      return field.empty();
    } else {
      return false;
    }
  });
}

std::string expectation(const Setting& setting) {
  if (setting.kind == Kind::kUnbound) return harmless_values(setting);
  if (const auto choices = choices_of(setting); !choices.empty()) {
    const std::string number = std::isfinite(setting.range.min)
                                   ? ", or " + number_expectation("an integer", setting.range)
                                   : "";
    return fmt::format("one of {}{}", fmt::join(choices, ", "), number);
  }
  if (is_switch(setting) && setting.kind != Kind::kBound) return "true or false";
  if (std::holds_alternative<std::monostate>(setting.field)) return "text";
  return field_expectation(setting);
}

}  // namespace strata::config
