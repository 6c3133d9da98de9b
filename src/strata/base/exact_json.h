// JSON whose integers beyond 64 bits keep their digits, for documents that are printed again and
// not computed with, such as rows of a data set. Never: arithmetic.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "strata/base/json.h"

namespace strata {

// As parse_json, but for those integers, which become doubles there. At most 4300 digits, as Python
// takes them.
Json parse_json_exactly(std::string_view text, const std::string& subject,
                        const JsonOptions& options = {});

// The digits, after their sign, of an integer that parse_json_exactly kept; nothing for any other
// value. nlohmann's type knows none: such a value is no number to it. dump_python writes them.
std::optional<std::string_view> big_integer(const Json& value);

}  // namespace strata
