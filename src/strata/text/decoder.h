// The "decoder" family of tokenizer.json: token strings back to text.
// To add a kind: a class in decoder.cpp (or its own file) and a row in make_decoder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strata/base/json.h"

namespace strata::text {

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Changes the strings in place; the text is their concatenation at the end of the chain.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

// Null gives nullptr (tokens are then joined by spaces). FormatError names an unsupported type.
std::unique_ptr<Decoder> make_decoder(const Json& json, const std::string& where);

}  // namespace strata::text
