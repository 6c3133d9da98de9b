// Building the two directions with all checks.
#include "strata/text/vocabulary.h"

#include "strata/base/error.h"

namespace strata::text {

Vocabulary::Vocabulary(std::vector<std::pair<std::string, int64_t>> entries,
                       const std::string& where, bool may_repeat) {
  ids_.reserve(entries.size());
  for (auto& [token, id] : entries) {
    if (id < 0 || id >= kMaxId) {
      throw FormatError("{}: found id {} for token \"{}\", expected 0 to {}", where, id, token,
                        kMaxId - 1);
    }
    if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(id + 1, nullptr);
    if (tokens_[id] != nullptr) {
      throw FormatError("{}: found id {} for both \"{}\" and \"{}\", expected unique ids", where,
                        id, *tokens_[id], token);
    }
    const std::string& kept = strings_.emplace_back(std::move(token));
    tokens_[id] = &kept;
    const auto [place, is_new] = ids_.emplace(kept, static_cast<int32_t>(id));
    if (!is_new && may_repeat) {
      place->second = static_cast<int32_t>(id);
    } else if (!is_new) {
      throw FormatError("{}: found token \"{}\" twice, expected unique tokens", where, kept);
    }
  }
}

}  // namespace strata::text
