// The closest known name for a misspelt one ("did you mean ...?"). Never: whole sentences.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace strata {

// Insertions, deletions, replacements and swaps of neighbours between two strings of bytes
// (Damerau-Levenshtein in its optimal-string-alignment form).
size_t edit_distance(std::string_view a, std::string_view b);

// The candidates nearest to `name`, nearest first, ignoring case and taking '-' and '_' for the
// same. Nothing when even the nearest differs in more than a third of its letters and neither
// begins with the other.
std::vector<std::string> closest_names(std::string_view name,
                                       std::span<const std::string> candidates, size_t most);
// The first of them.
std::optional<std::string> closest(std::string_view name, std::span<const std::string> candidates);

}  // namespace strata
