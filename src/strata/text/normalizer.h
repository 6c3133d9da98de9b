// The "normalizer" family of tokenizer.json: changes text before it is split.
// To add a kind: a class in normalizer.cpp (or its own file) and a row in make_normalizer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/text/piece.h"

namespace strata::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // The changed piece, or the same one when nothing changes.
  virtual Piece apply(const Piece& piece, Arena& arena) const = 0;
};

// Null gives nullptr. FormatError names an unsupported type.
std::unique_ptr<Normalizer> make_normalizer(const Json& json, const std::string& where);

// The kinds that have files of their own.
std::unique_ptr<Normalizer> make_normal_form(const std::string& type);  // nullptr if it is none
std::vector<std::unique_ptr<Normalizer>> make_bert_steps(const Json& json,
                                                         const std::string& where);
std::unique_ptr<Normalizer> make_strip_accents();
std::unique_ptr<Normalizer> make_nmt();
std::unique_ptr<Normalizer> make_precompiled(const Json& json, const std::string& where);

}  // namespace strata::text
