// What a label, and the token that a decoder starts from, say beside a token id. Owns: those
// values.
#pragma once

#include <cstdint>

namespace strata {

// The token is not trained on: torch's ignore_index, which the reference stack's labels carry.
inline constexpr int32_t kNotTrained = -100;

// Not one id for all texts: the decoder starts from the last token of each target, as mBART does.
inline constexpr int64_t kStartsWithLastToken = -1;

}  // namespace strata
