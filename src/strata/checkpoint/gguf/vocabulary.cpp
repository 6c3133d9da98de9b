#include "strata/checkpoint/gguf/vocabulary.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/base/utf8_length.h"

namespace strata::checkpoint {
namespace {

using text::AddedToken;
using text::Tokenizer;
using text::TokenizerParts;

constexpr std::string_view kMark = "▁";

class TokenLister {
 public:
  TokenLister(const TokenizerParts& parts, const Tokenizer& tokenizer, int64_t num_rows)
      : parts_(parts), tokenizer_(tokenizer), num_rows_(num_rows) {
    list_.texts.resize(static_cast<size_t>(num_rows));
    list_.kinds.assign(static_cast<size_t>(num_rows), static_cast<int32_t>(TokenKind::kUnused));
  }

  void put(int64_t id, std::string text, TokenKind kind) {
    list_.texts[static_cast<size_t>(id)] = std::move(text);
    list_.kinds[static_cast<size_t>(id)] = static_cast<int32_t>(kind);
  }

  void add_vocabulary() {
    for (const auto& [token, id] : parts_.vocabulary) {
      if (id >= num_rows_) {
        throw FormatError(
            "{}: found token {} \"{}\", expected ids below the {} rows of the embedding; use the "
            "tokenizer that belongs to these weights",
            parts_.subject, id, token, num_rows_);
      }
      put(id, token, TokenKind::kNormal);
    }
  }

  // `text_of`: what llama.cpp looks for in a text.
  template <typename TextOf>
  void add_added_tokens(const TextOf& text_of) {
    int64_t num_beyond = 0, num_strips = 0;
    for (const AddedToken& token : tokenizer_.added_tokens()) {
      const int64_t id = *tokenizer_.token_to_id(token.content);
      if (id >= num_rows_) {
        ++num_beyond;
        continue;
      }
      num_strips += token.lstrip || token.rstrip || token.single_word ? 1 : 0;
      if (const auto [text, kind] = text_of(token); kind != TokenKind::kNormal) put(id, text, kind);
    }
    if (num_beyond > 0) {
      list_.notes.push_back(fmt::format("{} beyond the {} rows of the embedding left out",
                                        counted(num_beyond, "added token"), num_rows_));
    }
    if (num_strips > 0) {
      list_.notes.push_back(fmt::format(
          "{} with lstrip, rstrip or single_word: GGUF has no such marks, and llama.cpp may keep "
          "the white space around them",
          counted(num_strips, "added token")));
    }
  }

  // llama.cpp holds texts in a table, which would lose one of two.
  void require_unique() {
    std::unordered_map<std::string_view, size_t> places;
    for (size_t id = 0; id < list_.texts.size(); ++id) {
      std::string& text = list_.texts[id];
      if (list_.kinds[id] == static_cast<int32_t>(TokenKind::kUnused)) {
        text = fmt::format("[PAD{}]", id);
      }
      const auto [other, is_new] = places.emplace(text, id);
      if (is_new) continue;
      throw FormatError(
          "{}: found \"{}\" under the ids {} and {}, expected every token once, as llama.cpp finds "
          "tokens by their text; use another tokenizer",
          parts_.subject, text, other->second, id);
    }
  }

  TokenList& list() { return list_; }

 private:
  const TokenizerParts& parts_;
  const Tokenizer& tokenizer_;
  int64_t num_rows_;
  TokenList list_;
};

bool is_byte_token(std::string_view text) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  return text.size() == 6 && text.starts_with("<0x") && text[5] == '>' &&
         kHex.find(text[3]) != std::string_view::npos &&
         kHex.find(text[4]) != std::string_view::npos;
}

void require_bytes(const TokenizerParts& parts) {
  const Json falls_back = parts.model.value("byte_fallback", Json(false));
  const auto num_bytes = std::ranges::count_if(
      parts.vocabulary, [](const auto& entry) { return is_byte_token(entry.first); });
  if (falls_back == true && num_bytes == 256) return;
  throw FormatError(
      "{}: found byte_fallback {} and {} of 256 tokens for bytes, expected true and all of them, "
      "without which llama.cpp cannot read a character beyond the vocabulary; "
      "use a tokenizer that has them",
      parts.subject, falls_back.dump(), num_bytes);
}

// The end of the character at `at`.
size_t next_character(std::string_view text, size_t at) {
  return at == text.size() ? at : at + std::max<size_t>(1, utf8_length(text.substr(at)));
}

// llama.cpp knows no merges: it joins two neighbours whose text is a token, those of the highest
// score first. That is the same where the tokens' order is that of the merges which make them, and
// no two tokens make a third without a merge.
class ScoreOfMerges {
 public:
  explicit ScoreOfMerges(const TokenizerParts& parts) : parts_(parts) {
    for (const auto& [token, id] : parts.vocabulary) ids_.emplace(token, id);
    for (const auto& [left, right] : parts.merges) {
      merges_.insert(key(find(left), find(right)));
      const int64_t made = find(left + right);
      ranks_.emplace(made, static_cast<int64_t>(ranks_.size()));
    }
  }

  bool makes(int64_t id) const { return ranks_.contains(id); }
  // By id; lower for what is made later.
  float score(int64_t id) const { return 0.0F - static_cast<float>(ranks_.at(id)); }
  size_t num_made() const { return ranks_.size(); }

  // `is_read`: whether the token of an id is one that texts are made of.
  template <typename IsRead>
  void require_complete(const IsRead& is_read) const {
    for (const auto& [token, id] : parts_.vocabulary) {
      if (!is_read(id)) continue;
      const std::string_view whole = token;
      for (size_t cut = next_character(whole, 0); cut < whole.size();
           cut = next_character(whole, cut)) {
        const auto left = ids_.find(whole.substr(0, cut)), right = ids_.find(whole.substr(cut));
        if (left == ids_.end() || right == ids_.end()) continue;
        if (!is_read(left->second) || !is_read(right->second)) continue;
        if (!merges_.contains(key(left->second, right->second))) refuse(left->first, right->first);
      }
    }
  }

 private:
  static uint64_t key(int64_t left, int64_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint64_t>(right);
  }
  int64_t find(const std::string& token) const {
    const auto found = ids_.find(token);
    if (found != ids_.end()) return found->second;
    throw FormatError("{}: found a merge with \"{}\", expected tokens of the vocabulary",
                      parts_.subject, token);
  }
  [[noreturn]] void refuse(std::string_view left, std::string_view right) const {
    throw FormatError(
        "{}: found the tokens \"{}\", \"{}\" and \"{}{}\" and no merge that joins them, expected "
        "one, as llama.cpp joins what makes a token; use a tokenizer that SentencePiece trained",
        parts_.subject, left, right, left, right);
  }

  const TokenizerParts& parts_;
  std::unordered_map<std::string_view, int64_t> ids_;
  std::unordered_set<uint64_t> merges_;
  std::unordered_map<int64_t, int64_t> ranks_;  // of the tokens that merges make
};

std::string with_spaces(std::string_view text) {
  std::string spaced;
  for (size_t at = 0; at < text.size();) {
    const bool is_mark = text.substr(at).starts_with(kMark);
    spaced += is_mark ? ' ' : text[at];
    at += is_mark ? kMark.size() : 1;
  }
  return spaced;
}

void mark_bytes(TokenList& list) {
  for (size_t id = 0; id < list.texts.size(); ++id) {
    if (list.kinds[id] == static_cast<int32_t>(TokenKind::kNormal) && is_byte_token(list.texts[id]))
      list.kinds[id] = static_cast<int32_t>(TokenKind::kByte);
  }
}

void score_tokens(const ScoreOfMerges& merges, TokenList& list) {
  // What no merge makes, characters and marks, comes last; texts join them to nothing.
  auto next = static_cast<float>(merges.num_made());
  for (size_t id = 0; id < list.texts.size(); ++id) {
    const bool is_made = merges.makes(static_cast<int64_t>(id));
    list.scores.push_back(is_made ? merges.score(static_cast<int64_t>(id)) : -next++);
  }
}

}  // namespace

TokenList byte_level_tokens(const TokenizerParts& parts, const Tokenizer& tokenizer,
                            int64_t num_rows) {
  TokenLister lister(parts, tokenizer, num_rows);
  lister.add_vocabulary();
  lister.add_added_tokens([](const AddedToken& token) {
    return std::pair(token.content, token.special ? TokenKind::kControl : TokenKind::kUserDefined);
  });
  lister.require_unique();
  return std::move(lister.list());
}

TokenList sentencepiece_tokens(const TokenizerParts& parts, const Tokenizer& tokenizer,
                               int64_t num_rows) {
  require_bytes(parts);
  const ScoreOfMerges merges(parts);
  const std::optional<std::string> unknown = tokenizer.specials().unk;
  TokenLister lister(parts, tokenizer, num_rows);
  lister.add_vocabulary();
  lister.add_added_tokens([&](const AddedToken& token) {
    if (token.content == unknown) return std::pair(token.content, TokenKind::kUnknown);
    if (token.special) return std::pair(token.content, TokenKind::kControl);
    // A run of spaces, which is looked for as it is written here and which merges make of a text.
    const bool is_of_marks = token.content.find(kMark) != std::string::npos;
    const bool is_made = merges.makes(*tokenizer.token_to_id(token.content));
    if (is_of_marks && is_made) return std::pair(token.content, TokenKind::kNormal);
    return std::pair(with_spaces(token.content), TokenKind::kUserDefined);
  });
  mark_bytes(lister.list());
  lister.require_unique();
  const auto normal = static_cast<int32_t>(TokenKind::kNormal);
  merges.require_complete(
      [&](int64_t id) { return lister.list().kinds[static_cast<size_t>(id)] == normal; });
  score_tokens(merges, lister.list());
  return std::move(lister.list());
}

std::vector<std::string> merge_lines(const TokenizerParts& parts) {
  std::vector<std::string> lines;
  lines.reserve(parts.merges.size());
  for (const auto& [left, right] : parts.merges) {
    if (left.find(' ') != std::string::npos || right.find(' ') != std::string::npos) {
      throw FormatError(
          "{}: found a space in the merge of \"{}\" and \"{}\", expected none, as GGUF "
          "parts the two by one; use another tokenizer",
          parts.subject, left, right);
    }
    lines.push_back(left + ' ' + right);
  }
  return lines;
}

}  // namespace strata::checkpoint
