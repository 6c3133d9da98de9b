#include "strata/base/text_distance.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace strata {
namespace {

// Names this short or shorter are no hint when they are only the beginning of another.
constexpr size_t kMinPrefix = 4;

std::string folded(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return result;
}

bool is_prefix_hint(std::string_view a, std::string_view b) {
  const std::string_view shorter = a.size() < b.size() ? a : b;
  const std::string_view longer = a.size() < b.size() ? b : a;
  return shorter.size() >= kMinPrefix && longer.starts_with(shorter);
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    std::swap(before_last, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::vector<std::string> closest_names(std::string_view name,
                                       std::span<const std::string> candidates, size_t most) {
  struct Near {
    size_t distance;
    std::string name;
  };
  const std::string wanted = folded(name);
  std::vector<Near> near, begun;
  for (const std::string& candidate : candidates) {
    const std::string known = folded(candidate);
    const size_t distance = edit_distance(wanted, known);
    const size_t limit = std::max<size_t>(1, std::max(wanted.size(), known.size()) / 3);
    // A name of one or two letters is near to everything; only a swap of its letters counts.
    if (distance <= limit && distance < std::min(wanted.size(), known.size())) {
      near.push_back({distance, candidate});
    }
    if (is_prefix_hint(wanted, known)) begun.push_back({distance, candidate});
  }
  std::vector<Near>& found = near.empty() ? begun : near;
  std::ranges::stable_sort(found, {}, &Near::distance);
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(most, found.size()); ++i) names.push_back(found[i].name);
  return names;
}

std::optional<std::string> closest(std::string_view name, std::span<const std::string> candidates) {
  const std::vector<std::string> names = closest_names(name, candidates, /*most=*/1);
  return names.empty() ? std::nullopt : std::optional(names.front());
}

}  // namespace strata
