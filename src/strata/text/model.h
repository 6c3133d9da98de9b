// The seam for tokenization models (the "model" of tokenizer.json): turns one piece into tokens.
// To add a kind: a make_<kind>_model in its model_*.cpp and a row in make_model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "strata/text/tokenizer_file.h"
#include "strata/text/vocabulary.h"

namespace strata::text {

// A token of a piece and the bytes of the piece it stands for.
struct ModelToken {
  int32_t id;
  uint32_t begin;
  uint32_t end;
};

// Threads: tokenize() may run at the same time.
class Model {
 public:
  virtual ~Model() = default;
  // Appends the tokens of `piece` (valid UTF-8, not empty).
  virtual void tokenize(std::string_view piece, std::vector<ModelToken>& out) const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
  // Whether a piece may be cut before every `mark` that follows another character without a change
  // of the result: no token spans such a place. Long pieces (SentencePiece models see whole texts)
  // then become words, which are quick and found in the cache.
  virtual bool cuts_before(std::string_view mark) const {
    static_cast<void>(mark);
    return false;
  }
};

// Takes vocabulary and merges out of `file`. FormatError names what is wrong.
std::unique_ptr<Model> make_model(TokenizerFile& file);
std::unique_ptr<Model> make_bpe_model(TokenizerFile& file);
std::unique_ptr<Model> make_unigram_model(TokenizerFile& file);
std::unique_ptr<Model> make_word_piece_model(TokenizerFile& file);
std::unique_ptr<Model> make_word_level_model(TokenizerFile& file);
// `inner` with the ids of file.outer_vocab.
std::unique_ptr<Model> make_mapped_model(std::unique_ptr<Model> inner, TokenizerFile& file);

}  // namespace strata::text
