// Tokens beside the model's vocabulary (<|im_start|>, ...): their ids and flags, and finding them
// in text before anything else happens to it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "strata/base/json.h"
#include "strata/text/normalizer.h"
#include "strata/text/piece.h"
#include "strata/text/vocabulary.h"

namespace strata::text {

struct AddedToken {
  std::string content;
  bool single_word = false;  // only where no word character is beside it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;
  bool normalized = true;  // looked for after normalisation
  bool special = false;    // left out by decode(skip_special_tokens)
};

// Reads the JSON form of tokenizer.json and tokenizer_config.json.
AddedToken read_added_token(const Json& json, const std::string& where);

// A stretch of a piece: an added token, or text between (id < 0).
struct TokenSpan {
  size_t begin, end;
  int32_t id;
};

// Leftmost, then longest search for a set of byte strings.
class TokenTrie {
 public:
  void insert(std::string_view content, int32_t index);
  bool empty() const { return nodes_.size() == 1; }
  // Longest entry that begins at `at`: its index and end, if any.
  std::optional<std::pair<int32_t, size_t>> longest_at(std::string_view text, size_t at) const;

 private:
  struct Node {
    int32_t index = -1;
    std::vector<std::pair<uint8_t, uint32_t>> children;
  };
  std::vector<Node> nodes_{1};
  bool starts_[256] = {};
};

class AddedTokens {
 public:
  // Adds a token, or changes the flags of one that is there. Its id: that of the model's vocabulary
  // if the content is in it, else the next free one.
  void add(const AddedToken& token, const Vocabulary& vocabulary);
  // Leaves special tokens that are written in a text to the model ("split_special_tokens").
  void ignore_specials_in_text() { ignores_specials_ = true; }
  bool ignores_specials_in_text() const { return ignores_specials_; }
  // Builds the searches. To be called after the last add().
  void prepare(const Normalizer* normalizer);

  std::optional<int32_t> find(std::string_view content) const;
  // The text that decoding gives, which is the normalised content of a normalised token.
  const std::string* token(int32_t id) const;
  bool contains(int32_t id) const { return by_id_.contains(id); }
  bool is_special(int32_t id) const;
  std::vector<AddedToken> all() const;        // in the order of their ids
  int32_t end_id() const { return end_id_; }  // highest added id + 1, 0 if none

  // Splits text at the added tokens looked for before (false) or after normalisation (true).
  std::vector<TokenSpan> split(std::string_view text, bool after_normalization) const;

 private:
  struct Entry {
    AddedToken token;
    int32_t id;
    std::string text;
  };
  std::vector<Entry> entries_;
  std::unordered_map<std::string, size_t> by_content_;
  std::unordered_map<int32_t, size_t> by_id_;
  int32_t end_id_ = 0;
  bool ignores_specials_ = false;
  TokenTrie tries_[2];  // before, after normalisation
};

}  // namespace strata::text
