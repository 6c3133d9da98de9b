// The "decoder" family of tokenizer.json: token strings back to text.
// To add a kind: a class in decoder.cpp (or its own file) and a row in make_decoder.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "strata/base/json.h"

namespace strata::text {

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Changes the strings in place; the text is their concatenation at the end of the chain.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
  // Whether neighbouring byte tokens are decoded together, so that one that follows may change the
  // text of those before it.
  virtual bool joins_bytes() const { return false; }
};

// The byte that a token like <0x0A> stands for, or -1.
int byte_of_token(std::string_view token);

// Null gives nullptr (tokens are then joined by spaces). FormatError names an unsupported type.
std::unique_ptr<Decoder> make_decoder(const Json& json, const std::string& where);

// WordPiece, BPEDecoder, CTC; nullptr for another type.
std::unique_ptr<Decoder> make_word_decoder(const std::string& type, const Json& json,
                                           const std::string& where);

}  // namespace strata::text
