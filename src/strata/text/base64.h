// Base64 as tokenizer files use it.
#pragma once

#include <string>
#include <string_view>

namespace strata::text {

// FormatError named `where` for a character that is no base64.
std::string decode_base64(std::string_view text, const std::string& where);
std::string encode_base64(std::string_view bytes);

}  // namespace strata::text
