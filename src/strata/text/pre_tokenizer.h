// The "pre_tokenizer" family of tokenizer.json: cuts text into the pieces that the model sees one
// by one. To add a kind: a class in pre_tokenizer.cpp (or its own file) and a row in the factory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/text/piece.h"

namespace strata::text {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Replaces `piece` by its parts, appended to `out`; parts are never empty.
  virtual void split(const Piece& piece, Arena& arena, std::vector<Piece>& out) const = 0;
  // Asks a step that ends in byte characters to hand out plain bytes instead, so that the model's
  // cache can work on the text itself; true if this step agrees. Called once, before any split().
  virtual bool defer_byte_characters() { return false; }
};

// Null gives nullptr. FormatError names an unsupported type.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Json& json, const std::string& where);

// The kinds that look at one character at a time; nullptr for another type.
std::unique_ptr<PreTokenizer> make_character_splitter(const std::string& type, const Json& json,
                                                      const std::string& where);

}  // namespace strata::text
