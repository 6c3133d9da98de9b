// Which tokenizer class transformers would use for a folder. Never builds anything.
#pragma once

#include <string>

#include "strata/base/json.h"

namespace strata::text {

inline constexpr char kFileAsIs[] = "TokenizersBackend";  // tokenizer.json is used as written

// As AutoTokenizer chooses: by the class that tokenizer_config.json declares and the one registered
// for the model type of config.json (both may be null). `document`: tokenizer.json without
// vocabulary, null when the folder has none.
std::string choose_tokenizer_class(const Json& tokenizer_config, const Json& model_config,
                                   const Json& document);

// Whether token_type_ids are among what the class gives to models, or what tokenizer_config.json
// (may be null) says of that. Errors: FormatError for model_input_names that are no list.
bool class_gives_token_types(const std::string& tokenizer_class, const Json& tokenizer_config,
                             const std::string& folder);

}  // namespace strata::text
