// Text made of the table.
#include "strata/config/describe.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/base/json.h"
#include "strata/config/field_text.h"

namespace strata::config {
namespace {

// Meanings stand beside the names; on a narrow terminal below them.
constexpr size_t kHelpColumn = 32, kNarrow = 80, kHelpColumnBelow = 6;

// Plain where YAML reads it back as the same text, else quoted.
std::string yaml_text(const std::string& value) {
  constexpr std::string_view kSafe =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
  const bool is_null = value == "null" || value == "Null" || value == "NULL";
  const bool is_plain =
      !value.empty() && !is_null && value.find_first_not_of(kSafe) == std::string::npos;
  return is_plain ? value : quote_json(value);
}

std::string yaml_value_text(const Setting& setting, const RunConfig& config) {
  const std::string text = field_text(setting, config);
  const bool is_text = std::holds_alternative<std::string& (*)(RunConfig&)>(setting.field) ||
                       std::holds_alternative<ChoiceField>(setting.field);
  if (!is_list(setting)) return text == "none" && !is_text ? "null" : yaml_text(text);
  std::vector<std::string> items = std::get<std::vector<std::string>& (*)(RunConfig&)>(
      setting.field)(const_cast<RunConfig&>(config));
  // A list that tells [] from null has null for its default.
  if (items.empty() && !setting.synonyms.empty()) return "null";
  for (std::string& item : items) item = yaml_text(item);
  return fmt::format("[{}]", fmt::join(items, ", "));
}

std::string default_text(const Setting& setting) {
  if (setting.kind == Kind::kBound) return field_text(setting, RunConfig{});
  if (setting.kind == Kind::kUnbound) return std::string(setting.harmless.front());
  return "";
}

// "help; one of a, b (default: a)"
std::string help_text(const Setting& setting) {
  std::string text(setting.help);
  if (!choices_of(setting).empty() && setting.kind == Kind::kBound) {
    text += fmt::format("; {}", expectation(setting));
  }
  const std::string value = default_text(setting);
  if (!value.empty()) text += fmt::format(" (default: {})", value);
  return text;
}

void append_wrapped(std::string& out, const std::string& text, size_t indent, size_t width) {
  size_t column = indent;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find(' ', start), text.size());
    if (column > indent && column + 1 + end - start > width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out.append(text, start, end - start);
    column += end - start;
    start = end + 1;
  }
  out += '\n';
}

bool is_shown(const Setting& setting, Scope scope) {
  if (setting.kind == Kind::kUnbound) return false;
  return setting.scope == scope || setting.scope == Scope::kBoth;
}

std::string names_cell(const Setting& setting) {
  std::string cell = fmt::format("`{}`", setting.name);
  for (std::string_view alias : setting.aliases) cell += fmt::format(", `{}`", alias);
  return cell;
}

std::string unbound_row(const Setting& setting) {
  std::vector<std::string_view> values;
  for (std::string_view value : setting.harmless) {
    values.push_back(value == "*" ? "any" : value.empty() ? "empty" : value);
  }
  const bool takes_any = std::ranges::find(setting.harmless, "*") != setting.harmless.end();
  return fmt::format("| {} | {} | {} | {} |\n", names_cell(setting),
                     takes_any ? "any" : fmt::format("{}", fmt::join(values, ", ")), setting.help,
                     setting.peer);
}

}  // namespace

namespace {

std::string settings_lines(const Settings& settings, bool only_given) {
  std::string out;
  std::string_view group;
  for (const Setting& setting : settings_table()) {
    if (setting.kind != Kind::kBound) continue;
    const auto origin = settings.origins.find(std::string(setting.name));
    const bool is_given = origin != settings.origins.end() && origin->second.rank > Rank::kDefault;
    if (only_given && !is_given) continue;
    if (setting.group != group) {
      out += fmt::format("{}# {}\n", out.empty() ? "" : "\n", setting.group);
      group = setting.group;
    }
    out += fmt::format("{}: {}  # {}\n", setting.name, yaml_value_text(setting, settings.config),
                       settings.source_of(std::string(setting.name)));
  }
  return out;
}

}  // namespace

std::string show_settings(const Settings& settings) {
  std::string out = settings_lines(settings, /*only_given=*/false);
  if (!settings.autos.empty()) out += "\n";
  for (const std::string& line : settings.autos) out += "# " + line + "\n";
  return out;
}

std::string given_settings(const Settings& settings) {
  return settings_lines(settings, /*only_given=*/true);
}

std::string shared_settings(const Settings& settings) {
  std::string out;
  for (const Setting& setting : settings_table()) {
    if (setting.kind != Kind::kBound || setting.scope == Scope::kLaunch) continue;
    out += fmt::format("{}: {}  # {}\n", setting.name, yaml_value_text(setting, settings.config),
                       settings.source_of(std::string(setting.name)));
  }
  return out;
}

std::string flags_help(Scope scope, int columns) {
  std::vector<Setting> shown;
  for (const Setting& setting : settings_table()) {
    if (is_shown(setting, scope)) shown.push_back(setting);
  }
  return flags_help(shown, columns);
}

std::string flags_help(std::span<const Setting> table, int columns) {
  const auto width = static_cast<size_t>(std::max(columns, 40));
  const size_t indent = width < kNarrow ? kHelpColumnBelow : kHelpColumn;
  std::string out;
  std::string_view group;
  for (const Setting& setting : table) {
    if (setting.group != group) {
      out += fmt::format("\n{}:\n", setting.group);
      group = setting.group;
    }
    const std::string name = fmt::format("  --{}", setting.name);
    if (name.size() + 2 > indent) {
      out += fmt::format("{}\n{:{}}", name, "", indent);
    } else {
      out += fmt::format("{:<{}}", name, indent);
    }
    append_wrapped(out, help_text(setting), indent, width);
  }
  return out;
}

std::string settings_page() {
  std::string out =
      "# Settings\n\n"
      "Generated by `strata config docs` from the settings table; do not edit.\n\n"
      "Every name is a flag (`--name value`, with hyphens or underscores), a key of a `--config` "
      "file, or both.\n"
      "Precedence: defaults < files < environment < flags. `strata config show` prints every value "
      "and its origin.\n"
      "`null` in a file: not set, except where it has a meaning below.\n"
      "An editor that knows JSON schemas completes and checks such a file: `strata config schema > "
      "settings.schema.json`, and in the\n"
      "file's first line `# yaml-language-server: $schema=settings.schema.json`.\n";
  std::string_view group;
  for (const Setting& setting : settings_table()) {
    if (setting.kind == Kind::kUnbound) continue;
    if (setting.group != group) {
      out += fmt::format("\n## {}\n\n| name | default | meaning | from |\n|---|---|---|---|\n",
                         setting.group);
      group = setting.group;
    }
    std::string meaning(setting.help);
    if (setting.kind == Kind::kBound && !choices_of(setting).empty()) {
      meaning += "; " + expectation(setting);
    }
    const std::string value = default_text(setting);
    out += fmt::format("| {} | {} | {} | {} |\n", names_cell(setting),
                       value.empty() ? "" : fmt::format("`{}`", value), meaning, setting.peer);
  }
  out +=
      "\n"
      "## Known, without effect or not supported\n\n"
      "The listed values are accepted: as flags with a warning, as keys of files (which programs "
      "fill in) silently; all others are errors.\n"
      "\"any\": every value is accepted, with a warning also in files where it is not the other "
      "program's default.\n\n"
      "| name | accepted | why, or what to use | from |\n"
      "|---|---|---|---|\n";
  for (const Setting& setting : settings_table()) {
    if (setting.kind == Kind::kUnbound) out += unbound_row(setting);
  }
  return out;
}

}  // namespace strata::config
