// What the tokenizer of a model folder is made of, for formats that store it otherwise than
// tokenizer.json: vocabulary, merges and the steps around the model, after what its class changes.
// Never: tokenizing (tokenizer.h), nor added tokens, which that knows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "strata/base/json.h"

namespace strata::text {

struct TokenizerParts {
  std::string subject;  // the vocabulary's path, for messages
  // As tokenizer.json writes them, null where there is none; the model without vocabulary and
  // merges where it is of BPE.
  Json model, normalizer, pre_tokenizer;
  std::vector<std::pair<std::string, int64_t>> vocabulary;  // in no order; empty: not of BPE
  std::vector<std::pair<std::string, std::string>> merges;  // first comes first
};

// Errors: those of Tokenizer::load().
TokenizerParts read_tokenizer_parts(const std::filesystem::path& folder);

}  // namespace strata::text
