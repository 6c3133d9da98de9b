// The tokenizer of a model as the keys of a GGUF file (tokenizer.ggml.*, tokenizer.chat_template).
// Owns: those keys. Never: files, nor how a vocabulary is listed (vocabulary.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/hf/formats/gguf.h"

namespace strata::checkpoint {

struct GgufTokenizer {
  hf::GgufMetadata keys;
  std::vector<std::string> notes;  // what somebody should know, a line each
};

// `folder` holds the tokenizer, `config` is the model's config.json, whose embedding has
// `num_rows`. `ends`: ids that end an answer beside the tokenizer's own, as generation_config.json
// says. Errors: those of text::Tokenizer::load(); FormatError for a tokenizer that llama.cpp has
// not: of another model than BPE, a pattern, a normalizer or tokens around a text that it does not
// know.
GgufTokenizer describe_tokenizer(const std::filesystem::path& folder, const Json& config,
                                 const std::vector<int64_t>& ends, int64_t num_rows);

}  // namespace strata::checkpoint
