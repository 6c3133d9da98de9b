// {"String": text} or {"Regex": pattern} of tokenizer.json.
#pragma once

#include <string>

#include "strata/base/json.h"
#include "strata/text/regex.h"

namespace strata::text {

Regex make_pattern(const Json& json, const std::string& where);

}  // namespace strata::text
