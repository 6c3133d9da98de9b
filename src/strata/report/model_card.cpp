#include "strata/report/model_card.h"

#include <optional>
#include <ranges>
#include <string_view>

#include <fmt/format.h>

#include "strata/base/visible_text.h"
#include "strata/report/figures.h"
#include "strata/report/log_line.h"

namespace strata::report {
namespace {

constexpr std::string_view kMark =
    "<!-- Written by Strata, and anew with each result in this folder: without this line it stays "
    "as it is. -->";

std::string front_matter(const ModelCard& card) {
  const auto list = [](const char* name, const std::vector<std::string>& items) {
    std::string text = items.empty() ? "" : fmt::format("{}:\n", name);
    for (const std::string& item : items) text += fmt::format("- {}\n", quote_json(visible(item)));
    return text;
  };
  std::string text = "---\n";
  if (!card.base_model.empty()) {
    text += fmt::format("base_model: {}\n", quote_json(visible(card.base_model)));
  }
  text += list("datasets", card.datasets);
  text += fmt::format("library_name: {}\n", card.library);
  return text + list("tags", card.tags) + "---\n";
}

// Text without meaning to Markdown and HTML, in one line.
std::string plain(const std::string& text) {
  std::string escaped;
  for (const char c : visible(text)) {
    if (c == '\n' || c == '\t') {
      escaped += ' ';
      continue;
    }
    if (std::string_view("\\`*[]<>&|#~").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string last_number(const std::vector<Json>& rows, const std::string& key) {
  for (const Json& row : std::views::reverse(rows)) {
    if (const auto value = number_at(row, key)) return four_digits(*value);
  }
  return "";
}

std::string figures(const std::vector<Json>& rows) {
  std::vector<std::string> names = recipe_figures(rows);
  names.insert(names.begin(), "loss");
  std::string table;
  for (const std::string& name : names) {
    std::string trained = last_number(rows, name);
    if (trained.empty() && name == "loss") trained = last_number(rows, "train_loss");
    const std::string evaluated = last_number(rows, kEvaluationPrefix + name);
    if (trained.empty() && evaluated.empty()) continue;
    table += fmt::format("| {} | {} | {} |\n", plain(name), trained, evaluated);
  }
  if (table.empty()) return "";
  const auto step = static_cast<int64_t>(number_at(rows.back(), "step").value_or(0));
  return fmt::format(
      "## Figures\n\nAs last logged, up to step {}.\n\n"
      "| | training | evaluation |\n|---|---|---|\n{}\n",
      step, table);
}

}  // namespace

std::string model_card_text(const ModelCard& card) {
  std::string settings;
  for (const auto& [name, value] : card.settings) {
    settings += fmt::format("| {} | {} |\n", plain(name), plain(value));
  }
  return fmt::format(
      "{}{}\n\n# {}\n\n{}\n\n{}## Settings\n\n| | |\n|---|---|\n{}\nAll of them are in "
      "`settings.json`: `{}` does the same again. Curves are in `report.html`.\n",
      front_matter(card), kMark, plain(card.title), plain(card.summary), figures(card.rows),
      settings, card.command);
}

bool is_model_card(std::string_view readme) { return readme.find(kMark) != std::string_view::npos; }

}  // namespace strata::report
