// Which pipeline a tokenizer class means. transformers 5 does not always use tokenizer.json as
// written: some classes keep its vocabulary and merges and put their own normalizer, pre-tokenizer,
// decoder and post-processor in place. This chooses the class's rules and knows the classes that
// cannot be had; the rules stand in rules_*.cpp.
#pragma once

#include <optional>
#include <string>

#include "strata/base/json.h"

namespace strata::text {

// Where a class puts the token of a text's language: before the text, or behind its end token.
// `mark` stands on both sides of the code in the token.
struct LanguageEnds {
  bool is_first;
  std::string mark = "";

  std::string token_of(const std::string& code) const { return mark + code + mark; }
};

struct ClassRules {
  std::string name;                        // empty: the file as it is written
  Json default_specials = Json::object();  // named tokens that the class has without being told
  // The post-processor of the class, with the names of special tokens ("cls_token") or tokens
  // where ids belong; null: that of the file.
  Json post_processor = {};
  std::optional<LanguageEnds> language_ends = {};
  bool reads_code_prefix = false;  // ">>fra<<" at a text's beginning is a token
  // Where that post-processor counts: always, or only with or without one in the file.
  enum class Applies { kAlways, kIfFileHasNone, kIfFileHasOne };
  Applies post_processor_applies = Applies::kAlways;
  // Which named tokens the class adds once more: all, without the flags they have in the files, or
  // its own that the settings do not name, with its own flags.
  enum class Readds { kNone, kAll, kDefaults };
  Readds readds = Readds::kNone;
};

// FormatError for a class whose pipeline cannot be had: transformers runs it in Python, or not from
// the vocabulary of tokenizer.json.
void require_described_class(const std::string& tokenizer_class, bool has_tokenizer_json,
                             const std::string& subject);

// Rewrites `document` (tokenizer.json without vocabulary) to what the class builds.
// `settings`: tokenizer_config.json with what special_tokens_map.json adds; may be null.
// Requires: require_described_class() has accepted the class.
ClassRules apply_class_rules(const std::string& tokenizer_class, const Json& settings,
                             Json& document, const std::string& subject);

// The post-processor for a text of a language, as ClassRules has it.
Json ends_of_language(const LanguageEnds& ends, const std::string& code);

// Whether the class has the ids of its pieces in vocab.json, beside a SentencePiece model.
bool maps_pieces(const std::string& tokenizer_class);

// Whether the class has a pipeline of its own, and whether it reads SentencePiece models where
// there is no tokenizer.json.
bool has_class_rules(const std::string& tokenizer_class);
bool is_sentencepiece_class(const std::string& tokenizer_class);

}  // namespace strata::text
