#include "strata/text/jinja/marked.h"

namespace strata::text::jinja {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&#34;";
    } else if (c == '\'') {
      out += "&#39;";
    } else {
      out += c;
    }
  }
  return out;
}

Value escape_value(const Value& value, Budget& budget) {
  return value.is_marked() ? value : Value::marked(escaped(to_text(value, budget)));
}

void refuse_to_escape(const Value& value) {
  if (!value.is_string() || value.is_marked()) return;
  if (value.text().find_first_of("&<>'\"") == std::string::npos) return;
  throw Fault(
      "found a text joined to the result of safe or escape, in which Jinja writes <, >, & and "
      "quotes as &lt; and so on, expected plain texts; remove that filter");
}

Value marked_as(const Value& source, const Value& made) {
  if (!source.is_marked()) return made;
  if (made.is_string()) return Value::marked(made.text());
  if (!made.is_list()) return made;
  Items items;
  for (const Value& item : made.as_list().items) items.push_back(marked_as(source, item));
  return Value::list(std::move(items), made.as_list().is_tuple);
}

}  // namespace strata::text::jinja
