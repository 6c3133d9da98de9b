// The methods of str, apart from the others for their number. A method gets its object as first
// positional argument.
#pragma once

#include <string_view>
#include <unordered_map>

#include "strata/text/jinja/interpreter.h"

namespace strata::text::jinja {

using MethodTable = std::unordered_map<std::string_view, Function>;
const MethodTable& text_methods();

}  // namespace strata::text::jinja
