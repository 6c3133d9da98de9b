// How llama.cpp cuts a text before its BPE, chosen by what tokenizer.json says. Owns: the table of
// patterns that both know. Never: vocabularies.
#pragma once

#include <string>

#include "strata/text/tokenizer_parts.h"

namespace strata::checkpoint {

// Of tokenizers whose tokens are bytes: the name of llama.cpp's rule ("llama-bpe", "qwen2") that
// cuts and merges as this one. FormatError for a pattern or a step that it has no rule for.
std::string pre_tokenizer_name(const text::TokenizerParts& parts);

// Whether the tokens are bytes written as characters (GPT-2's), not pieces of SentencePiece.
bool has_byte_level(const text::TokenizerParts& parts);

// Of pieces of SentencePiece: where a space is put before a text.
enum class SpacePrefix { kNever, kAtTheStart, kBehindTokensToo };
// FormatError for a normalizer or pre-tokenizer that llama.cpp's "llama" does not have.
SpacePrefix space_prefix(const text::TokenizerParts& parts);

}  // namespace strata::checkpoint
