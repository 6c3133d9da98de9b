#include "strata/models/padding_id.h"

#include "strata/base/error.h"

namespace strata::models {

std::optional<int64_t> parse_padding_id(const ConfigReader& config, int64_t vocab_size,
                                        std::optional<int64_t> fallback) {
  const bool is_said = config.json().contains("pad_token_id");
  const auto id = is_said ? config.optional_integer("pad_token_id") : fallback;
  if (!id) return id;
  if (*id >= vocab_size || *id < -vocab_size) {
    throw FormatError(
        "config.json: found pad_token_id = {}, expected a token of the vocabulary of {}; fix the "
        "file",
        *id, vocab_size);
  }
  return *id < 0 ? *id + vocab_size : *id;
}

}  // namespace strata::models
