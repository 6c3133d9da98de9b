// The tokens of a model as GGUF lists them: a text, a kind and, of SentencePiece's, a score each.
// Owns: what stands under each id. Never: how texts are cut before (pre_tokenizer.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/text/tokenizer.h"
#include "strata/text/tokenizer_parts.h"

namespace strata::checkpoint {

// The numbers are the format's.
enum class TokenKind : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct TokenList {
  std::vector<std::string> texts;
  std::vector<int32_t> kinds;  // TokenKind
  std::vector<float> scores;   // of SentencePiece's, else empty
  std::vector<std::string> notes;
};

// One for each of the `num_rows` rows of the embedding; ids that no token has are unused.
// FormatError for a token beyond the rows, a text that two ids have, and merges that llama.cpp
// would not follow.
TokenList byte_level_tokens(const text::TokenizerParts& parts, const text::Tokenizer& tokenizer,
                            int64_t num_rows);
TokenList sentencepiece_tokens(const text::TokenizerParts& parts, const text::Tokenizer& tokenizer,
                               int64_t num_rows);

// "a b" of each merge. FormatError for one with a space inside a part.
std::vector<std::string> merge_lines(const text::TokenizerParts& parts);

}  // namespace strata::checkpoint
