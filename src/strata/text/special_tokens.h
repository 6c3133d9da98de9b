// The named tokens (bos_token, ...) and added tokens that a model folder's files declare.
#pragma once

#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/text/added_tokens.h"
#include "strata/text/classes/rules.h"
#include "strata/text/tokenizer.h"

namespace strata::text {

struct NamedTokens {
  Tokenizer::Specials specials;
  // In the order in which ids are given out.
  std::vector<AddedToken> added;
  std::vector<AddedToken> legacy;           // of added_tokens.json: only where absent
  std::vector<AddedToken> specials_to_add;  // where neither of those has them; the last one counts
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
