#include "strata/config/value.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/text_distance.h"
#include "strata/config/field_access.h"
#include "strata/config/field_text.h"
#include "strata/config/foreign_values.h"
#include "strata/config/list_text.h"

namespace strata::config {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

bool is_none(std::string_view text) {
  const std::string low = lower(text);
  return low == "none" || low == "null";
}

[[noreturn]] void refuse(const Given& given, const std::string& found,
                         std::string_view advice = {}) {
  const bool is_one = !given.value.is_null && given.value.items.size() == 1;
  const std::string known =
      is_one ? foreign_value_advice(*given.setting, given.value.items.front()) : "";
  if (!known.empty()) advice = known;
  throw ConfigError("{}: found {}, expected {}{}{}", named_source(given), found,
                    expectation(*given.setting), advice.empty() ? "" : "; ", advice);
}

std::string quoted(const Value& value) {
  if (value.is_null) return value.items.empty() ? "null" : "an empty list";
  if (value.items.size() != 1) return fmt::format("a list ({})", fmt::join(value.items, ", "));
  return fmt::format("\"{}\"", value.items.front());
}

// The whole text; invalid_argument also for more than a number.
template <typename Number>
std::errc read_number(const std::string& text, Number& number) {
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, number);
  return stop == end ? error : std::errc::invalid_argument;
}

template <typename Number>
bool parse_number(const std::string& text, Number& number) {
  return read_number(text, number) == std::errc();
}

bool is_in_range(double number, const Range& range) {
  if (!std::isfinite(number) || number < range.min || number > range.max) return false;
  return !(range.max_open && number == range.max);
}

// "did you mean X?" for a misspelt value.
std::string near_hint(const std::string& text, const std::vector<std::string>& known) {
  const auto near = closest(text, known);
  return near ? "did you mean " + *near + "?" : "";
}

std::vector<std::string> spellings(const Setting& setting) {
  const auto choices = choices_of(setting);
  std::vector<std::string> known(choices.begin(), choices.end());
  for (auto [spelling, meaning] : setting.synonyms) known.emplace_back(spelling);
  return known;
}

// The choice that `text` names; the text itself when any is allowed.
std::string choose(const Given& given, const std::string& text) {
  const Setting& setting = *given.setting;
  std::string wanted = text;
  for (auto [spelling, meaning] : setting.synonyms) {
    if (lower(spelling) == lower(wanted)) {
      wanted = meaning;
      break;
    }
  }
  const auto choices = choices_of(setting);
  if (choices.empty() || (wanted.empty() && is_empty_by_default(setting))) return wanted;
  auto matches = [&](std::string_view choice) { return lower(choice) == lower(wanted); };
  auto found = std::ranges::find_if(choices, matches);
  if (found != choices.end()) return std::string(*found);
  // Some settings take a number beside the named choices.
  double number = 0;
  if (std::isfinite(setting.range.min) && parse_number(wanted, number) &&
      is_in_range(number, setting.range) && number == std::floor(number)) {
    return wanted;
  }
  if (std::ranges::any_of(setting.refused, matches)) {
    refuse(given, quoted(given.value), "it is not supported in this version");
  }
  refuse(given, quoted(given.value), near_hint(wanted, spellings(setting)));
}

const std::string& only_item(const Given& given) {
  if (given.value.is_null || given.value.items.size() != 1) refuse(given, quoted(given.value));
  return given.value.items.front();
}

template <typename T>
void parse_into(const Given& given, const std::string& text, T& field) {
  if constexpr (std::is_same_v<T, bool>) {
    const std::optional<bool> parsed = parse_boolean(text);
    if (!parsed) {
      refuse(given, quoted(given.value),
             near_hint(text, {"true", "false", "yes", "no", "on", "off"}));
    }
    field = *parsed;
  } else if constexpr (std::is_same_v<T, std::string>) {
    field = choose(given, text);
    if (given.setting->is_switch && given.setting->choices.empty()) {
      if (auto flag = parse_boolean(field)) field = *flag ? "true" : "";
    }
  } else {
    T number{};
    const std::errc error = read_number(text, number);
    if (error == std::errc::result_out_of_range && std::is_integral_v<T> && text[0] != '-') {
      refuse(given, quoted(given.value),
             fmt::format("it is at most {}", std::numeric_limits<T>::max()));
    }
    if (error != std::errc() || !is_in_range(static_cast<double>(number), given.setting->range)) {
      refuse(given, quoted(given.value));
    }
    field = number;
  }
}

// The synonym that a list of one entry is, such as "[]"; empty: none.
std::pair<std::string_view, std::string_view> only_synonym(const Given& given) {
  if (given.value.items.size() != 1) return {};
  for (const auto& synonym : given.setting->synonyms) {
    if (lower(synonym.first) == lower(given.value.items[0])) return synonym;
  }
  return {};
}

template <typename T>
void assign_field(const Given& given, T& field) {
  const Value& value = given.value;
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    const auto [spelling, meaning] = only_synonym(given);
    if (!meaning.empty()) {
      field = {std::string(meaning)};
    } else {
      field = value.is_null ? T{} : list_entries(value.items);
    }
  } else {
    if (value.is_null) {
      if constexpr (OptionalTraits<T>::kIsOptional || std::is_same_v<T, std::string>) {
        field = T{};
        return;
      }
    }
    const std::string& text = only_item(given);
    if constexpr (OptionalTraits<T>::kIsOptional) {
      if (is_none(text)) {
        field.reset();
        return;
      }
      typename OptionalTraits<T>::Value parsed{};
      parse_into(given, text, parsed);
      field = parsed;
    } else {
      parse_into(given, text, field);
    }
  }
}

// How the harmless values of an unbound setting are compared: case aside, booleans alike.
std::string plain_text(const Value& value) {
  if (value.is_null) return "none";
  std::string text = lower(fmt::format("{}", fmt::join(value.items, ",")));
  if (text == "{}" || text == "[]" || is_none(text)) return "none";
  return text;
}

bool is_same_plain(const std::string& text, std::string_view harmless) {
  if (text == lower(harmless)) return true;
  auto a = parse_boolean(text), b = parse_boolean(harmless);
  if (a && b && !text.empty() && !std::isdigit(static_cast<unsigned char>(harmless.front()))) {
    return *a == *b;
  }
  double x = 0, y = 0;
  return parse_number(text, x) && parse_number(lower(harmless), y) && x == y;
}

std::string canonical_unbound(const Given& given) {
  const std::string text = plain_text(given.value);
  bool any = false;
  for (std::string_view harmless : given.setting->harmless) {
    if (is_same_plain(text, harmless)) return std::string(harmless);
    any = any || harmless == "*";
  }
  if (any) return text;
  throw ConfigError("{}: found {}, expected {}; not supported in this version ({})",
                    named_source(given), quoted(given.value), expectation(*given.setting),
                    given.setting->help);
}

}  // namespace

std::string named_source(const Given& given) {
  const auto& [rank, source] = given.origin;
  const bool is_line =
      (rank == Rank::kFile || rank == Rank::kDefaultFile) && !source.ends_with(')');
  return is_line ? fmt::format("{} ({})", source, given.setting->name) : source;
}

void expand_home(const std::string& home, std::string& path) {
  if (!home.empty() && (path == "~" || path.starts_with("~/"))) path.replace(0, 1, home);
}

void expand_home(const std::string& home, Given& given) {
  if (!given.setting->is_path) return;
  for (std::string& item : given.value.items) expand_home(home, item);
}

Origin implied_by(const Given& given) {
  return {Rank::kImplied, "implied by " + given.origin.source};
}

Given make_given(const std::string& name, const std::string& text, Origin origin) {
  return {&get_setting(name), {.items = {text}}, std::move(origin)};
}

std::optional<bool> parse_boolean(std::string_view text) {
  constexpr std::array kTrue = {"yes", "true", "t", "y", "on", "1"};
  constexpr std::array kFalse = {"no", "false", "f", "n", "off", "0"};
  const std::string low = lower(text);
  if (std::ranges::find(kTrue, low) != kTrue.end()) return true;
  if (std::ranges::find(kFalse, low) != kFalse.end()) return false;
  return std::nullopt;
}

std::string canonical_text(const Given& given) {
  const Setting& setting = *given.setting;
  switch (setting.kind) {
    case Kind::kBound: {
      RunConfig scratch;
      assign(given, scratch);
      return field_text(setting, scratch);
    }
    case Kind::kUnbound:
      return canonical_unbound(given);
    case Kind::kTranslated:
    case Kind::kSource: {
      const std::string& text = only_item(given);
      // What a shell makes of a variable that is not set.
      if (text.empty() && setting.is_path && given.origin.rank >= Rank::kLaunchFlag) {
        throw ConfigError("{}: found an empty name, expected a path; name one, or leave it out",
                          named_source(given));
      }
      if (is_switch(setting)) {
        if (auto flag = parse_boolean(text)) return *flag ? "true" : "false";
        if (setting.choices.empty()) refuse(given, quoted(given.value));
      }
      return choose(given, text);
    }
  }
  throw InternalError("setting {}: found an unknown kind, expected one of Kind", setting.name);
}

void assign(const Given& given, RunConfig& config) {
  visit_field(*given.setting, config, [&](auto& field) {
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, ChoiceField>) {
      field.set(config, choose(given, only_item(given)));
    } else {
      assign_field(given, field);
    }
  });
}

bool gives_default(const Given& given) {
  if (given.setting->kind != Kind::kBound) return false;
  RunConfig config;
  const std::string before = field_text(*given.setting, config);
  assign(given, config);
  return field_text(*given.setting, config) == before;
}

}  // namespace strata::config
