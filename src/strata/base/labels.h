// What a label says beside a token id. Owns: that value.
#pragma once

#include <cstdint>

namespace strata {

// The token is not trained on: torch's ignore_index, which the reference stack's labels carry.
inline constexpr int32_t kNotTrained = -100;

}  // namespace strata
