// Which pipeline a model folder means. transformers 5 does not always use tokenizer.json as
// written: some tokenizer classes keep its vocabulary and merges and put their own normalizer,
// pre-tokenizer and decoder in place. This file chooses as AutoTokenizer does; it builds nothing.
#pragma once

#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/text/added_tokens.h"
#include "strata/text/tokenizer.h"

namespace strata::text {

// Rewrites the document of tokenizer.json (without vocabulary) to what the chosen class builds.
// `tokenizer_config` and `model_config` (config.json) may be null. Returns whether the class builds
// its own pipeline. FormatError for a class whose own pipeline is not supported.
bool apply_class_rules(const Json& tokenizer_config, const Json& model_config, Json& document,
                       const std::string& subject);

struct NamedTokens {
  Tokenizer::Specials specials;
  std::vector<AddedToken> added;    // in the order in which ids are given out
  std::vector<AddedToken> missing;  // specials: to be added only where absent
};

// Special and added tokens of the configuration files (null where absent).
// `is_rebuilt`: the result of apply_class_rules.
struct TokenFiles {
  Json tokenizer_config;
  Json special_tokens_map;
  Json added_tokens;
};
NamedTokens collect_tokens(const TokenFiles& files, const Json& document, bool is_rebuilt,
                           const std::string& folder);

}  // namespace strata::text
