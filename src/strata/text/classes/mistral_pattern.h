// The pattern of published Mistral tokenizers that cut words at the wrong places, and its
// correction, for which `fix_mistral_regex` of tokenizer_config.json asks. Reads no files.
#pragma once

#include "strata/base/json.h"

namespace strata::text {

// Whether transformers 5.23 takes the tokenizer for one of those: by the model's config.json (of
// the right type, or of none, and saved before version 5) and the number of its tokens.
bool may_have_wrong_pattern(const Json& model_config, int64_t num_tokens);

// The pre-tokenizer with the right pattern in place of its own.
Json with_right_pattern(Json pre_tokenizer);

}  // namespace strata::text
