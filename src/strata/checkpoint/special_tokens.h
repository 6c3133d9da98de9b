// Where generation begins and stops, in config.json and generation_config.json. Never: files.
#pragma once

#include "strata/base/json.h"
#include "strata/text/tokenizer.h"

namespace strata::checkpoint {

// Gives the config the ids of the tokenizer, as Trainer aligns them: an end that a list names
// already stays beside the new one. `is_generation`: of generation_config.json, where both ends
// stay.
void align_special_tokens(const text::Tokenizer& tokenizer, bool is_generation, Json& config);

}  // namespace strata::checkpoint
