// The named tokens (bos_token, ...) and added tokens that a model folder's files declare.
#pragma once

#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/text/added_tokens.h"
#include "strata/text/class_rules.h"
#include "strata/text/tokenizer.h"

namespace strata::text {

struct NamedTokens {
  Tokenizer::Specials specials;
  std::vector<AddedToken> added;    // in the order in which ids are given out
  std::vector<AddedToken> missing;  // specials: to be added only where absent
};

// Special and added tokens of the configuration files (null where absent).
struct TokenFiles {
  Json tokenizer_config;
  Json special_tokens_map;
  Json added_tokens;
};
// tokenizer_config.json with special_tokens_map.json laid over it, as far as that one counts.
Json merged_settings(const TokenFiles& files);
NamedTokens collect_tokens(const TokenFiles& files, const Json& document, const ClassRules& rules,
                           const std::string& folder);

}  // namespace strata::text
