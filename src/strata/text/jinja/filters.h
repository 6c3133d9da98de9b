// What the files of filters share. A filter gets its value as first argument.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "strata/text/jinja/interpreter.h"

namespace strata::text::jinja {

using FilterTable = std::unordered_map<std::string_view, Function>;
const FilterTable& choosing_filters();  // select, map, default, attr, tojson
const FilterTable& item_filters();
const FilterTable& text_filters();
const FilterTable& number_filters();

inline const Value& subject(Arguments& a) { return a.positional[0]; }
inline std::string subject_text(Arguments& a) { return to_text(subject(a), a.budget); }

// "a.b.0" or a number: the attribute of an item that map, sort and their like work on.
Value attribute_of(const Value& item, const Value& attribute, Budget& budget);

}  // namespace strata::text::jinja
