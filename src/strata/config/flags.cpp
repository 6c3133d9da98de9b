// Splits argument lists into settings.
#include "strata/config/flags.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/config/field_text.h"
#include "strata/config/foreign_names.h"

namespace strata::config {
namespace {

bool starts_flag(const std::string& token) {
  if (token.size() < 2 || token[0] != '-') return false;
  // "-1" and "-.5" are values.
  return token[1] == '-' || std::isalpha(static_cast<unsigned char>(token[1]));
}

// As for argparse, which torchrun and accelerate read their lines with: behind it no flag follows.
constexpr std::string_view kProgramFollows = "--";

bool starts_launch_flag(const std::string& token) {
  return starts_flag(token) && token != kProgramFollows;
}

bool is_run_setting(const Setting& setting) { return setting.scope != Scope::kLaunch; }
bool is_launch_setting(const Setting& setting) { return setting.scope != Scope::kRun; }

bool is_any_setting(const Setting&) { return true; }

enum class FlagSet { kRun, kLaunch, kMixed };

struct ParsedFlag {
  Given given;
  size_t used = 1;  // tokens
};

class FlagParser {
 public:
  FlagParser(std::span<const std::string> arguments, FlagSet set, std::string_view command)
      : arguments_(arguments),
        launch_(set == FlagSet::kLaunch),
        words_follow_(set == FlagSet::kLaunch),
        command_(command) {
    if (set == FlagSet::kRun) accepts_ = is_run_setting;
    if (set == FlagSet::kLaunch) accepts_ = is_launch_setting;
  }
  FlagParser(std::span<const std::string> arguments, std::span<const Setting> table,
             std::string_view command, bool words_follow = false)
      : arguments_(arguments),
        launch_(false),
        words_follow_(words_follow),
        table_(table),
        command_(command) {}

  // Reads the flag at `position`. Throws for unknown names and missing values.
  ParsedFlag parse(size_t position) const {
    std::string token = expand_short(arguments_[position]);
    const size_t equals = token.find('=');
    const std::string written = token.substr(0, equals);
    const Rank rank = launch_ ? Rank::kLaunchFlag : Rank::kFlag;
    ParsedFlag parsed{
        {nullptr, {}, {rank, launch_ ? fmt::format("{} {}", command_, written) : written}}};
    bool negated = false;
    parsed.given.setting = &find(written, negated);
    if (negated) {
      if (equals != std::string::npos) {
        throw ConfigError("{}: found a value, expected none; write {}", token, written);
      }
      parsed.given.value.items = {"false"};
    } else if (equals != std::string::npos) {
      parsed.given.value.items = {token.substr(equals + 1)};
    } else {
      take_values(position, written, parsed);
    }
    return parsed;
  }

  // The same into what was given; returns how many tokens that were.
  size_t read(size_t position) {
    ParsedFlag parsed = parse(position);
    keep(std::move(parsed.given));
    return parsed.used;
  }

  // In the place of what was given for the setting before.
  void keep(Given given) {
    const auto known = std::ranges::find(parsed_.given, given.setting, &Given::setting);
    if (known != parsed_.given.end() && !given.setting->repeatable) {
      if (known->value.items != given.value.items) {
        parsed_.warnings.push_back(
            fmt::format("{}: found {} after {} {}, the same setting; the last one wins",
                        given.origin.source, fmt::join(given.value.items, " "),
                        known->origin.source, fmt::join(known->value.items, " ")));
      }
      parsed_.given.erase(known);
    }
    parsed_.given.push_back(std::move(given));
  }

  ParsedFlags take() { return std::move(parsed_); }

 private:
  static std::string expand_short(const std::string& token) {
    static const std::map<std::string, std::string> kShort = {
        {"-q", "--quiet"}, {"-t", "--tee"}, {"-m", "--module"}};
    const auto found = kShort.find(token);
    return found == kShort.end() ? token : found->second;
  }

  const Setting& find(const std::string& written, bool& negated) const {
    const std::string name =
        written.starts_with("--") ? normalized_name(written.substr(2)) : std::string();
    const Setting* setting = find_setting(table_, name);
    if (!setting && name.starts_with("no_")) {
      setting = find_setting(table_, name.substr(3));
      if (setting && !is_true_by_default(*setting)) setting = nullptr;
      negated = setting != nullptr;
    }
    if (!setting) throw_unknown(written, name);
    if (!accepts_(*setting)) throw_misplaced(written);
    return *setting;
  }

  [[noreturn]] void throw_unknown(const std::string& written, const std::string& name) const {
    std::string advice;
    const Setting* denied =
        name.starts_with("no_") ? find_setting(table_, name.substr(3)) : nullptr;
    if (denied && is_switch(*denied)) {
      // What is translated has the default of another setting.
      advice = fmt::format("write --{} false{}", name.substr(3),
                           denied->kind == Kind::kTranslated ? "" : ", which it is by default");
    } else if (table_.data() == settings_table().data()) {
      advice = unknown_advice(name, accepts_, "--");
    } else if (const auto near = closest_setting(table_, name, accepts_)) {
      advice = "did you mean --" + *near + "?";
    }
    if (advice.empty()) advice = fmt::format("see strata {} --help", command_);
    throw ConfigError("{}: found an unknown flag, expected a known one; {}", written, advice);
  }

  [[noreturn]] void throw_misplaced(const std::string& written) const {
    if (launch_) {
      throw ConfigError(
          "{}: found a flag of the recipe before its name, expected it after; write strata {} "
          "[{} flags] sft {} ...",
          written, command_, command_, written);
    }
    throw ConfigError(
        "{}: found a flag of the launcher, expected flags of the recipe; write strata launch {} "
        "... {} ...",
        written, written, command_);
  }

  void take_values(size_t position, const std::string& written, ParsedFlag& parsed) const {
    const Setting& setting = *parsed.given.setting;
    const size_t next = position + 1;
    const bool has_value = next < arguments_.size() && !starts_flag(arguments_[next]);
    std::vector<std::string>& items = parsed.given.value.items;
    if (is_switch(setting)) {
      if (has_value && is_switch_value(setting, arguments_[next])) {
        items = {arguments_[next]};
        parsed.used = 2;
      } else {
        items = {"true"};
      }
      return;
    }
    if (!has_value) {
      throw ConfigError("{}: found no value, expected {}", written, expectation(setting));
    }
    size_t end = next + 1;
    if (is_list(setting)) {
      while (end < arguments_.size() && !starts_flag(arguments_[end])) ++end;
    }
    items.assign(arguments_.begin() + next, arguments_.begin() + end);
    parsed.used = end - position;
  }

  // Before a program's name or a path only a boolean can be meant for the switch; elsewhere any
  // text is.
  bool is_switch_value(const Setting& setting, const std::string& text) const {
    if (!words_follow_ || parse_boolean(text)) return true;
    return std::ranges::count(choices_of(setting), std::string_view(text)) > 0;
  }

  std::span<const std::string> arguments_;
  bool launch_;
  bool words_follow_ = false;
  std::span<const Setting> table_ = settings_table();
  std::string_view command_;
  bool (*accepts_)(const Setting&) = is_any_setting;
  ParsedFlags parsed_;
};

// What text programs make of two hyphens.
void refuse_other_dash(const std::string& word) {
  for (const char* dash : {"\u2013", "\u2014", "\u2212"}) {
    if (!word.starts_with(dash)) continue;
    throw ConfigError("{}: found a word that begins with a dash, expected two hyphens; write --{}",
                      word, word.substr(word.find_first_not_of(dash)));
  }
}

[[noreturn]] void throw_stray(const std::string& word) {
  refuse_other_dash(word);
  std::string advice;
  if (is_settings_file(word)) {
    advice = "; a settings file comes before all flags, or after --config";
  } else if (const size_t equals = word.find('=');
             equals != std::string::npos && find_setting(word.substr(0, equals)) != nullptr) {
    advice = "; write --" + word;
  }
  throw ConfigError("{}: found a word that belongs to no flag, expected --name value{}", word,
                    advice);
}

ParsedFlags parse_all(FlagParser parser, std::span<const std::string> arguments, size_t first = 0) {
  for (size_t i = first; i < arguments.size();) {
    if (!starts_flag(arguments[i])) throw_stray(arguments[i]);
    i += parser.read(i);
  }
  return parser.take();
}

bool begins_with_file(std::span<const std::string> arguments) {
  return !arguments.empty() && is_settings_file(arguments[0]);
}

ParsedFlags parse_flags(std::span<const std::string> arguments, FlagSet set,
                        std::string_view command) {
  FlagParser parser(arguments, set, command);
  const bool has_file = begins_with_file(arguments);
  if (has_file) parser.keep(make_given("config", arguments[0], {Rank::kFlag, "--config"}));
  return parse_all(std::move(parser), arguments, has_file ? 1 : 0);
}

}  // namespace

bool is_settings_file(const std::string& word) {
  return !starts_flag(word) &&
         (word.ends_with(".json") || word.ends_with(".yaml") || word.ends_with(".yml"));
}

ParsedFlags parse_run_flags(std::span<const std::string> arguments, std::string_view command) {
  return parse_flags(arguments, FlagSet::kRun, command);
}

ParsedFlags parse_mixed_flags(std::span<const std::string> arguments, std::string_view command) {
  return parse_flags(arguments, FlagSet::kMixed, command);
}

ParsedFlags parse_command_flags(std::span<const Setting> table, std::string_view command,
                                std::span<const std::string> arguments) {
  return parse_all(FlagParser(arguments, table, command), arguments);
}

FlagsAndWords parse_flags_and_words(std::span<const Setting> table, std::string_view command,
                                    std::span<const std::string> arguments) {
  FlagParser parser(arguments, table, command, /*words_follow=*/true);
  FlagsAndWords result;
  for (size_t i = 0; i < arguments.size();) {
    if (starts_flag(arguments[i])) {
      i += parser.read(i);
      continue;
    }
    refuse_other_dash(arguments[i]);
    result.words.push_back(arguments[i++]);
  }
  result.own = parser.take();
  return result;
}

SplitFlags split_command_flags(std::span<const Setting> table, std::string_view command,
                               std::span<const std::string> arguments) {
  FlagParser parser(arguments, table, command);
  SplitFlags split;
  for (size_t i = 0; i < arguments.size();) {
    const std::string name = arguments[i].substr(0, arguments[i].find('='));
    if (name.starts_with("--") && find_setting(table, normalized_name(name.substr(2)))) {
      i += parser.read(i);
    } else {
      split.others.push_back(arguments[i++]);
    }
  }
  split.own = parser.take();
  return split;
}

LaunchLine parse_launch_line(std::span<const std::string> arguments, std::string_view command) {
  FlagParser parser(arguments, FlagSet::kLaunch, command);
  LaunchLine line;
  size_t i = 0;
  while (i < arguments.size() && starts_launch_flag(arguments[i])) i += parser.read(i);
  ParsedFlags parsed = parser.take();
  line.given = std::move(parsed.given);
  line.warnings = std::move(parsed.warnings);
  line.flags.assign(arguments.begin(), arguments.begin() + i);
  if (i < arguments.size() && arguments[i] == kProgramFollows) ++i;
  if (i < arguments.size()) line.program = arguments[i++];
  line.arguments.assign(arguments.begin() + i, arguments.end());
  return line;
}

OwnFlags take_own_flags(std::span<const Setting> table, std::string_view command,
                        std::span<const std::string> arguments) {
  FlagParser own(arguments, table, command, /*words_follow=*/true);
  const FlagParser launch(arguments, FlagSet::kLaunch, command);
  OwnFlags result;
  size_t i = 0;
  while (i < arguments.size() && starts_launch_flag(arguments[i])) {
    const std::string& word = arguments[i];
    const std::string name =
        word.starts_with("--") ? normalized_name(word.substr(2, word.find('=') - 2)) : "";
    const bool is_own = find_setting(table, name) ||
                        (name.starts_with("no_") && find_setting(table, name.substr(3)));
    // An unknown name is suggested from both tables, the own first.
    const bool is_own_typo = !find_setting(name) && closest_setting(table, name);
    if (is_own || is_own_typo) {
      i += own.read(i);
      continue;
    }
    const size_t used = launch.parse(i).used;
    result.rest.insert(result.rest.end(), arguments.begin() + i, arguments.begin() + i + used);
    i += used;
  }
  result.own = own.take();
  result.rest.insert(result.rest.end(), arguments.begin() + i, arguments.end());
  return result;
}

std::vector<std::string> without_flags(std::span<const std::string> arguments,
                                       std::span<const std::string_view> names) {
  const FlagParser parser(arguments, FlagSet::kMixed, "sft");
  std::vector<std::string> kept;
  size_t i = 0;
  if (begins_with_file(arguments)) {
    kept = {"--config", arguments[0]};
    i = 1;
  }
  while (i < arguments.size() && starts_launch_flag(arguments[i])) {
    const ParsedFlag parsed = parser.parse(i);
    if (std::ranges::find(names, parsed.given.setting->name) == names.end()) {
      kept.insert(kept.end(), arguments.begin() + i, arguments.begin() + i + parsed.used);
    }
    i += parsed.used;
  }
  kept.insert(kept.end(), arguments.begin() + i, arguments.end());
  return kept;
}

}  // namespace strata::config
