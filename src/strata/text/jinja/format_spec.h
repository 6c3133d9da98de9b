// Python's two ways to format a value: the format specification of str.format() ("{:>8,.2f}") and
// the conversions of % ("%-8s"). Never looks names up.
#pragma once

#include <string>
#include <string_view>

#include "strata/text/jinja/value.h"

namespace strata::text::jinja {

// format(value, spec).
std::string format_value(const Value& value, std::string_view spec, Budget& budget);

// text.format(*arguments.positional from `first` on, **arguments.named), and pattern % given; of a
// marked text, Fault where a value would have to be escaped.
Value format_fields(const Value& text, const Arguments& arguments, size_t first);
Value format_percent(const Value& pattern, const Value& given, Budget& budget);

}  // namespace strata::text::jinja
