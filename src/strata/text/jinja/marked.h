// Texts that `safe` or `escape` marked: Jinja escapes whatever is put into one, and what is made of
// one is marked again. Texts are refused where escaping would change them: no template for a model
// wants that.
#pragma once

#include <string>
#include <string_view>

#include "strata/text/jinja/value.h"

namespace strata::text::jinja {

// The text with &, <, > and quotes as &amp; and the like.
std::string escaped(std::string_view text);
// value | escape: what is marked stays.
Value escape_value(const Value& value, Budget& budget);
// Fault where escaping would change a text.
void refuse_to_escape(const Value& value);
// The text, or the texts of a list, marked if `source` is.
Value marked_as(const Value& source, const Value& made);

}  // namespace strata::text::jinja
