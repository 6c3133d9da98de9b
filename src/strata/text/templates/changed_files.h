// The files of a tokenizer that was changed after loading (tokens added, tokens named, another chat
// template), so that transformers reads it back with the same ids. Owns: where a change is written.
// Never: writing files; it gives their text.
#pragma once

#include <map>
#include <string>

#include "strata/base/json.h"
#include "strata/text/tokenizer.h"

namespace strata::text {

// File name -> text of every file that differs from the one the tokenizer was loaded from.
// `chat_template`: empty leaves the template as it is. `model_config`: the config.json that comes
// into the same folder, null where none does, as beside an adapter. Where transformers would take
// another class with it than the one that was loaded, the settings declare that.
std::map<std::string, std::string> changed_files(const Tokenizer& tokenizer,
                                                 const std::string& chat_template,
                                                 const Json& model_config);

}  // namespace strata::text
