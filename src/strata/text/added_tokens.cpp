// Ids and matching as AddedVocabulary of `tokenizers`.
#include "strata/text/added_tokens.h"

#include <algorithm>
#include <map>

#include "strata/base/error.h"
#include "strata/text/component_json.h"
#include "strata/text/utf8.h"

namespace strata::text {

AddedToken read_added_token(const Json& json, const std::string& where) {
  AddedToken token;
  token.content = required_string(json, "content", where);
  token.single_word = bool_field(json, "single_word", false, where);
  token.lstrip = bool_field(json, "lstrip", false, where);
  token.rstrip = bool_field(json, "rstrip", false, where);
  token.special = bool_field(json, "special", false, where);
  token.normalized = bool_field(json, "normalized", !token.special, where);
  return token;
}

void TokenTrie::insert(std::string_view content, int32_t index) {
  if (content.empty()) return;
  starts_[static_cast<uint8_t>(content[0])] = true;
  uint32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<uint8_t>(c);
    auto& children = nodes_[node].children;
    const auto it = std::find_if(children.begin(), children.end(),
                                 [&](const auto& child) { return child.first == byte; });
    if (it != children.end()) {
      node = it->second;
      continue;
    }
    const auto created = static_cast<uint32_t>(nodes_.size());
    children.emplace_back(byte, created);
    nodes_.emplace_back();
    node = created;
  }
  if (nodes_[node].index < 0) nodes_[node].index = index;
}

std::optional<std::pair<int32_t, size_t>> TokenTrie::longest_at(std::string_view text,
                                                                size_t at) const {
  if (!starts_[static_cast<uint8_t>(text[at])]) return std::nullopt;
  std::optional<std::pair<int32_t, size_t>> best;
  uint32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    const auto& children = nodes_[node].children;
    const auto it = std::find_if(children.begin(), children.end(),
                                 [&](const auto& child) { return child.first == byte; });
    if (it == children.end()) break;
    node = it->second;
    if (nodes_[node].index >= 0) best = {nodes_[node].index, i + 1};
  }
  return best;
}

void AddedTokens::add(const AddedToken& token, const Vocabulary& vocabulary) {
  if (token.content.empty()) return;
  if (const auto known = by_content_.find(token.content); known != by_content_.end()) {
    entries_[known->second].token = token;
    return;
  }
  const auto in_model = vocabulary.find(token.content);
  const auto model_size = static_cast<int32_t>(vocabulary.size());
  const int32_t id = in_model ? *in_model : std::max(end_id_, model_size);
  by_content_.emplace(token.content, entries_.size());
  by_id_[id] = entries_.size();
  entries_.push_back({token, id, token.content});
  end_id_ = std::max(end_id_, id + 1);
}

void AddedTokens::prepare(const Normalizer* normalizer) {
  tries_[0] = tries_[1] = TokenTrie();
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    entry.text = entry.token.content;
    if (entry.token.normalized && normalizer != nullptr) {
      Arena arena;
      entry.text = normalizer->apply(arena.input(entry.text), arena).text;
    }
    tries_[entry.token.normalized].insert(entry.text, static_cast<int32_t>(i));
  }
}

std::optional<int32_t> AddedTokens::find(std::string_view content) const {
  const auto it = by_content_.find(std::string(content));
  return it == by_content_.end() ? std::nullopt : std::optional(entries_[it->second].id);
}

const std::string* AddedTokens::token(int32_t id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &entries_[it->second].text;
}

std::vector<AddedToken> AddedTokens::all() const {
  std::map<int32_t, AddedToken> by_id;
  for (const Entry& entry : entries_) by_id[entry.id] = entry.token;
  std::vector<AddedToken> tokens;
  for (auto& [id, token] : by_id) tokens.push_back(std::move(token));
  return tokens;
}

bool AddedTokens::is_special(int32_t id) const {
  const auto it = by_id_.find(id);
  return it != by_id_.end() && entries_[it->second].token.special;
}

namespace {

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  return (begin == 0 || !is_word(decode_char(text, previous_char(text, begin)))) &&
         (end == text.size() || !is_word(decode_char(text, end)));
}

}  // namespace

std::vector<TokenSpan> AddedTokens::split(std::string_view text, bool after_normalization) const {
  std::vector<TokenSpan> spans;
  const TokenTrie& trie = tries_[after_normalization];
  size_t done = 0;
  for (size_t at = 0; !trie.empty() && at < text.size();) {
    const auto match = trie.longest_at(text, at);
    if (!match) {
      ++at;
      continue;
    }
    const Entry& entry = entries_[match->first];
    size_t begin = at, end = match->second;
    at = end;
    if (ignores_specials_ && entry.token.special) continue;
    if (entry.token.single_word && !stands_alone(text, begin, end)) continue;
    while (entry.token.lstrip && begin > done) {
      const size_t before = previous_char(text, begin);
      if (before < done || !is_white_space(decode_char(text, before))) break;
      begin = before;
    }
    while (entry.token.rstrip && end < text.size() && is_white_space(decode_char(text, end))) {
      end += char_length(text, end);
    }
    if (done < begin) spans.push_back({done, begin, -1});
    spans.push_back({begin, end, entry.id});
    done = end;
  }
  if (done < text.size()) spans.push_back({done, text.size(), -1});
  return spans;
}

}  // namespace strata::text
