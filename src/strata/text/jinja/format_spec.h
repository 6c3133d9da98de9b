// Python's two ways to format a value: the format specification of str.format() ("{:>8,.2f}") and
// the conversions of % ("%-8s"). Never looks names up.
#pragma once

#include <string>
#include <string_view>

#include "strata/text/jinja/value.h"

namespace strata::text::jinja {

// format(value, spec).
std::string format_value(const Value& value, std::string_view spec, Budget& budget);

// text.format(*arguments.positional from `first` on, **arguments.named).
std::string format_fields(std::string_view text, const Arguments& arguments, size_t first);

// pattern % given.
std::string format_percent(std::string_view pattern, const Value& given, Budget& budget);

}  // namespace strata::text::jinja
