#include "strata/memory/accelerate_estimate.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "strata/base/error.h"

namespace strata::memory {
namespace {

constexpr int kNumColumns = 4;
using Row = std::array<std::string, kNumColumns>;
using Widths = std::array<size_t, kNumColumns>;

struct Rule {
  const char* dtype;
  double divisor;         // of the size in fp32
  double training_times;  // weights, gradients and Adam's moments; 0: cannot be trained
};

constexpr Rule kRules[] = {{"float32", 1, 4}, {"float16", 2, 2}, {"int8", 4, 0}, {"int4", 8, 0}};

const Rule& rule_of(const std::string& dtype) {
  const auto* rule = std::ranges::find(kRules, dtype, &Rule::dtype);
  if (rule == std::end(kRules)) {
    throw ConfigError("dtypes: found \"{}\", expected float32, float16, int8 or int4", dtype);
  }
  return *rule;
}

// Units of 1024, two decimals at most and one at least: as Python prints a rounded float.
std::string size_text(double bytes) {
  const char* const units[] = {"bytes", "KB", "MB", "GB", "TB"};
  const char* unit = "PB";
  for (const char* name : units) {
    if (bytes < 1024) {
      unit = name;
      break;
    }
    bytes /= 1024;
  }
  std::string text = fmt::format("{:.2f}", bytes);
  if (text.ends_with('0')) text.pop_back();
  return text + ' ' + unit;
}

// Of characters, not of bytes: a folder's name may hold any.
size_t length(const std::string& text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

// As Python's str.center: an odd blank goes to the left where the width is odd.
std::string centred(const std::string& text, size_t width) {
  const size_t blank = width - std::min(width, length(text));
  const size_t left = blank / 2 + (blank & width & 1);
  return std::string(left, ' ') + text + std::string(blank - left, ' ');
}

std::string line(const char* left, const char* between, const char* right, const Widths& widths) {
  std::string text = left;
  for (size_t i = 0; i < widths.size(); ++i) {
    if (i > 0) text += between;
    for (size_t k = 0; k < widths[i]; ++k) text += "─";
  }
  return text + right + '\n';
}

std::string row_line(const Row& row, const Widths& widths) {
  std::string text = "│";
  for (size_t i = 0; i < row.size(); ++i) text += centred(row[i], widths[i]) + "│";
  return text + '\n';
}

}  // namespace

std::string accelerate_table(const AccelerateCase& c, const std::vector<std::string>& dtypes) {
  const Row head = {"dtype", "Largest Layer", "Total Size", "Training using Adam"};
  const double whole = 4.0 * static_cast<double>(c.num_parameters);
  const double layer = 4.0 * static_cast<double>(c.largest_layer);
  std::vector<Row> rows;
  for (const std::string& dtype : dtypes) {
    const Rule& rule = rule_of(dtype);
    rows.push_back({dtype, size_text(layer / rule.divisor), size_text(whole / rule.divisor),
                    rule.training_times == 0 ? "N/A" : size_text(whole * rule.training_times)});
  }
  Widths widths{};
  for (size_t i = 0; i < widths.size(); ++i) {
    widths[i] = length(head[i]);
    for (const Row& row : rows) widths[i] = std::max(widths[i], length(row[i]));
  }
  const std::string title = fmt::format("Memory Usage for loading `{}`", c.model_name);
  size_t cells = 0;
  for (const size_t width : widths) cells += width;
  const size_t line_length = cells + widths.size() + 1;
  // accelerate widens the last column twice, by what the title and the line differ.
  if (length(title) > cells) {
    const size_t longer = std::max(length(title), line_length);
    const size_t shorter = std::min(length(title), line_length);
    widths.back() += 2 * (longer - shorter);
    cells += 2 * (longer - shorter);
  }
  std::string text = line("┌", "─", "┐", widths) + "│" + centred(title, cells + widths.size() - 1) +
                     "│\n" + line("├", "┬", "┤", widths) + row_line(head, widths) +
                     line("├", "┼", "┤", widths);
  for (const Row& row : rows) text += row_line(row, widths);
  return text + line("└", "┴", "┘", widths);
}

}  // namespace strata::memory
