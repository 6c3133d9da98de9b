// What becomes of the matches of a splitting step: kept apart, removed, joined to a neighbour.
// Never decides what matches.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "strata/text/piece.h"

namespace strata::text {

using Range = std::pair<size_t, size_t>;  // [first, second) in bytes

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// By its name in tokenizer.json. FormatError for another one.
Behavior make_behavior(const std::string& name, const std::string& where);

// Appends the parts of `piece` around and at `matches` (ordered, not overlapping). `invert`: what
// lies between them is the match.
void split_at(const Piece& piece, const std::vector<Range>& matches, Behavior behavior, bool invert,
              std::vector<Piece>& out);

}  // namespace strata::text
