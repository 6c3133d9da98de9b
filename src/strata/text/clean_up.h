// clean_up_tokenization_spaces of tokenizer_config.json: English text without the spaces that
// WordPiece's decoding leaves before punctuation and contractions.
#pragma once

#include <string>
#include <string_view>

#include "strata/base/json.h"

namespace strata::text {

// Whether decoding ends with it. As transformers 5: not for BPE models, whose spaces are the
// text's, unless the settings insist. `settings` may be null.
bool cleans_up_spaces(const Json& settings, std::string_view tokenizer_class,
                      std::string_view model_type);

std::string clean_up_spaces(std::string text);

// How much of a growing text can be cleaned by itself: nothing that follows changes that part.
size_t cleanable_size(std::string_view text);

}  // namespace strata::text
