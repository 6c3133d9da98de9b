// The tests of `is`, each with its value as first argument.
#include <unordered_map>

#include "strata/text/jinja/interpreter.h"
#include "strata/text/utf8.h"

namespace strata::text::jinja {
namespace {

const Value& subject(Arguments& a) { return a.positional[0]; }

// value % by == rest, as Python computes it.
bool leaves(const Value& value, const Value& by, int64_t rest, Budget& budget) {
  return equals(binary_operation("%", value, by, budget), Value(rest), budget);
}

bool has_case(const std::string& text, bool upper) {
  bool has_letter = false;
  for (const std::string_view c : split_chars(text)) {
    const char32_t code = decode_char(c, 0);
    if (upper ? is_lower(code) : is_upper(code)) return false;
    has_letter |= is_lower(code) || is_upper(code);
  }
  return has_letter;
}

// A name of a filter or test is looked up in a dict.
const Value& hashable(const Value& value) {
  if (value.is_dict() || (value.is_list() && !value.as_list().is_tuple)) {
    throw Fault(std::string("unhashable type: '") + value.type_name() + "'");
  }
  return value;
}

Value is_sequence(Arguments& a) {
  return subject(a).is_string() || subject(a).is_list() ||
         (subject(a).is_dict() && !subject(a).as_dict().is_namespace) || subject(a).is_undefined();
}

Value is_same_object(Arguments& a) {
  const Value &x = subject(a), &y = a.require(1, "other");
  if (x.is_bool() != y.is_bool() || x.is_float() != y.is_float()) return false;
  if (x.is_dict() && y.is_dict()) return &x.as_dict() == &y.as_dict();
  if (x.is_list() && y.is_list()) return &x.as_list() == &y.as_list();
  return equals(x, y, a.budget);
}

template <typename Predicate>
Value ordered(Arguments& a, Predicate predicate) {
  return predicate(compare(subject(a), a.require(1, "other"), a.budget));
}

const std::unordered_map<std::string_view, Function>& tests() {
  static const std::unordered_map<std::string_view, Function> table = [] {
    std::unordered_map<std::string_view, Function> t = {
        {"defined", [](Arguments& a) -> Value { return !subject(a).is_undefined(); }},
        {"undefined", [](Arguments& a) -> Value { return subject(a).is_undefined(); }},
        {"none", [](Arguments& a) -> Value { return subject(a).is_none(); }},
        {"boolean", [](Arguments& a) -> Value { return subject(a).is_bool(); }},
        {"true", [](Arguments& a) -> Value { return subject(a).is_bool() && is_true(subject(a)); }},
        {"false",
         [](Arguments& a) -> Value { return subject(a).is_bool() && !is_true(subject(a)); }},
        {"integer",
         [](Arguments& a) -> Value { return subject(a).is_int() || subject(a).is_big(); }},
        {"float", [](Arguments& a) -> Value { return subject(a).is_float(); }},
        {"number", [](Arguments& a) -> Value { return subject(a).is_number(); }},
        {"string", [](Arguments& a) -> Value { return subject(a).is_string(); }},
        {"mapping",
         [](Arguments& a) -> Value {
           return subject(a).is_dict() && !subject(a).as_dict().is_namespace;
         }},
        {"sequence", is_sequence},
        {"iterable",
         [](Arguments& a) -> Value {
           return subject(a).is_generator() || is_true(is_sequence(a));
         }},
        {"callable",
         [](Arguments& a) -> Value {
           return subject(a).is_callable() || subject(a).is_undefined();
         }},
        {"sameas", is_same_object},
        {"odd", [](Arguments& a) -> Value { return leaves(subject(a), 2, 1, a.budget); }},
        {"even", [](Arguments& a) -> Value { return leaves(subject(a), 2, 0, a.budget); }},
        {"divisibleby",
         [](Arguments& a) -> Value {
           return leaves(subject(a), a.require(1, "num"), 0, a.budget);
         }},
        {"lower",
         [](Arguments& a) -> Value { return has_case(to_text(subject(a), a.budget), false); }},
        {"upper",
         [](Arguments& a) -> Value { return has_case(to_text(subject(a), a.budget), true); }},
        {"in",
         [](Arguments& a) -> Value { return contains(a.require(1, "seq"), subject(a), a.budget); }},
        {"filter",
         [](Arguments& a) -> Value {
           return hashable(subject(a)).is_string() && find_filter(subject(a).text()) != nullptr;
         }},
        {"test",
         [](Arguments& a) -> Value {
           return hashable(subject(a)).is_string() && find_test(subject(a).text()) != nullptr;
         }},
    };
    const Function eq = [](Arguments& a) -> Value {
      return equals(subject(a), a.require(1, "other"), a.budget);
    };
    const Function ne = [](Arguments& a) -> Value {
      return !equals(subject(a), a.require(1, "other"), a.budget);
    };
    const Function lt = [](Arguments& a) { return ordered(a, [](int o) { return o < 0; }); };
    const Function le = [](Arguments& a) { return ordered(a, [](int o) { return o <= 0; }); };
    const Function gt = [](Arguments& a) { return ordered(a, [](int o) { return o > 0; }); };
    const Function ge = [](Arguments& a) { return ordered(a, [](int o) { return o >= 0; }); };
    for (const char* name : {"eq", "==", "equalto"}) t.emplace(name, eq);
    for (const char* name : {"ne", "!="}) t.emplace(name, ne);
    for (const char* name : {"lt", "<", "lessthan"}) t.emplace(name, lt);
    for (const char* name : {"le", "<="}) t.emplace(name, le);
    for (const char* name : {"gt", ">", "greaterthan"}) t.emplace(name, gt);
    for (const char* name : {"ge", ">="}) t.emplace(name, ge);
    return t;
  }();
  return table;
}

}  // namespace

Function find_test(std::string_view name) {
  const auto it = tests().find(name);
  return it == tests().end() ? nullptr : it->second;
}

}  // namespace strata::text::jinja
