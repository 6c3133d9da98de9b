// The files of a tokenizer that was changed after loading (tokens added, tokens named, another chat
// template), so that transformers reads it back with the same ids. Owns: where a change is written.
// Never: writing files; it gives their text.
#pragma once

#include <map>
#include <string>

#include "strata/text/tokenizer.h"

namespace strata::text {

// File name -> text of every file that differs from the one the tokenizer was loaded from.
// `chat_template`: empty leaves the template as it is. `has_model_config`: the model's config.json
// comes into the same folder. Without it, as beside an adapter, the settings declare the class that
// its model_type chose, where transformers would take another.
std::map<std::string, std::string> changed_files(const Tokenizer& tokenizer,
                                                 const std::string& chat_template,
                                                 bool has_model_config = true);

}  // namespace strata::text
