// Token strings and ids of a model, both ways. Never knows which tokens are special or added.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace strata::text {

// Invariants: ids are unique and below kMaxId; holes between ids are allowed.
class Vocabulary {
 public:
  static constexpr int64_t kMaxId = int64_t{1} << 24;

  Vocabulary() = default;
  // FormatError when an id is negative, too large or given twice, or a token is repeated;
  // `may_repeat`: the last id of a repeated token is the one that find() gives.
  Vocabulary(std::vector<std::pair<std::string, int64_t>> entries, const std::string& where,
             bool may_repeat = false);

  std::optional<int32_t> find(std::string_view token) const {
    const auto it = ids_.find(token);
    return it == ids_.end() ? std::nullopt : std::optional(it->second);
  }
  // Nullptr where no token has the id.
  const std::string* token(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < tokens_.size() ? tokens_[id] : nullptr;
  }
  size_t size() const { return ids_.size(); }
  int32_t end_id() const { return static_cast<int32_t>(tokens_.size()); }  // highest id + 1

 private:
  std::deque<std::string> strings_;
  std::vector<const std::string*> tokens_;
  std::unordered_map<std::string_view, int32_t> ids_;
};

}  // namespace strata::text
