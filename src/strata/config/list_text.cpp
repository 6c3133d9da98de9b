#include "strata/config/list_text.h"

#include <algorithm>
#include <optional>

#include "strata/base/error.h"
#include "strata/base/json.h"

namespace strata::config {
namespace {

// The entries of a list that is written as JSON or Python does: ["a", "b"]. Nothing: the text is
// another one, such as an expression.
std::optional<std::vector<std::string>> written_list(std::string text) {
  if (!text.starts_with('[') || !text.ends_with(']')) return std::nullopt;
  if (text.find('"') == std::string::npos) std::ranges::replace(text, '\'', '"');
  std::vector<std::string> entries;
  try {
    for (const Json& entry : parse_json(text, "list")) {
      if (!entry.is_string() && !entry.is_number()) return std::nullopt;
      entries.push_back(entry.is_string() ? entry.get<std::string>() : dump_python(entry));
    }
  } catch (const FormatError&) {
    return std::nullopt;
  }
  return entries;
}

}  // namespace

std::vector<std::string> list_entries(const std::vector<std::string>& items) {
  if (items.size() == 1) {
    if (auto entries = written_list(items[0])) return *entries;
  }
  std::vector<std::string> result;
  for (const std::string& item : items) {
    if (item.find_first_of("\\*+?^$()[]{}|") != std::string::npos) {
      result.push_back(item);
      continue;
    }
    size_t start = 0;
    while (start <= item.size()) {
      const size_t comma = std::min(item.find(',', start), item.size());
      std::string part = item.substr(start, comma - start);
      part.erase(0, part.find_first_not_of(' '));
      part.erase(part.find_last_not_of(' ') + 1);
      if (!part.empty()) result.push_back(part);
      start = comma + 1;
    }
  }
  return result;
}

}  // namespace strata::config
