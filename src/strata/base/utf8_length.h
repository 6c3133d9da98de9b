// Length of one UTF-8 character. Never: properties of characters (text/utf8.h).
#pragma once

#include <cstddef>
#include <string_view>

namespace strata {

// Bytes of the well-formed UTF-8 sequence at the start of `text` (Unicode table 3-7), 0 if none.
// Requires: text is not empty.
size_t utf8_length(std::string_view text);

}  // namespace strata
