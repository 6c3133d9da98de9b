// Follows SplitDelimiterBehavior of `tokenizers`.
#include "strata/text/split_behavior.h"

#include "strata/base/error.h"

namespace strata::text {
namespace {

struct Part {
  size_t begin, end;
  bool is_match;
};

std::vector<Part> cover(const std::vector<Range>& matches, size_t size, bool invert) {
  std::vector<Part> parts;
  parts.reserve(matches.size() + 1);
  size_t done = 0;
  for (const auto& [begin, end] : matches) {
    if (begin > done) parts.push_back({done, begin, invert});
    parts.push_back({begin, end, !invert});
    done = end;
  }
  if (done < size) parts.push_back({done, size, invert});
  return parts;
}

std::vector<Range> apply_behavior(const std::vector<Part>& parts, Behavior behavior) {
  std::vector<Range> out;
  bool previous = false;
  if (behavior == Behavior::kMergedWithNext) {
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      if (part->is_match && !previous && !out.empty()) {
        out.back().first = part->begin;
      } else {
        out.emplace_back(part->begin, part->end);
      }
      previous = part->is_match;
    }
    return {out.rbegin(), out.rend()};
  }
  for (const Part& part : parts) {
    const bool joins = behavior == Behavior::kMergedWithPrevious ? part.is_match && !previous
                       : behavior == Behavior::kContiguous       ? part.is_match == previous
                                                                 : false;
    if (joins && !out.empty()) {
      out.back().second = part.end;
    } else if (behavior != Behavior::kRemoved || !part.is_match) {
      out.emplace_back(part.begin, part.end);
    }
    previous = part.is_match;
  }
  return out;
}

}  // namespace

void split_at(const Piece& piece, const std::vector<Range>& matches, Behavior behavior, bool invert,
              std::vector<Piece>& out) {
  for (const auto& [begin, end] :
       apply_behavior(cover(matches, piece.text.size(), invert), behavior)) {
    if (begin < end) out.push_back(piece.sub(begin, end));
  }
}

Behavior make_behavior(const std::string& name, const std::string& where) {
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  throw FormatError(
      "{}: found behavior \"{}\", expected Removed, Isolated, MergedWithPrevious, MergedWithNext "
      "or Contiguous",
      where, name);
}

}  // namespace strata::text
