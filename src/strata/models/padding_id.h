// The token of padding, whose row of the embedding has no gradient. Never: the row.
#pragma once

#include <cstdint>
#include <optional>

#include "strata/models/config_reader.h"

namespace strata::models {

// `pad_token_id`: a key that says null means none, a missing one `fallback`. Negative ids count
// from the end, as nn.Embedding's padding_idx. FormatError for one that is not in the vocabulary.
std::optional<int64_t> parse_padding_id(const ConfigReader& config, int64_t vocab_size,
                                        std::optional<int64_t> fallback);

}  // namespace strata::models
