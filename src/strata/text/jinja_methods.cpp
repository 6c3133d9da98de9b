// Methods of str, dict, list and tuple.
#include <algorithm>
#include <unordered_map>

#include "strata/text/jinja_interpreter.h"
#include "strata/text/jinja_strings.h"
#include "strata/text/utf8.h"

namespace strata::text::jinja {
namespace {

// A method gets its object as first positional argument.
using Table = std::unordered_map<std::string_view, Function>;

const std::string& self_text(Arguments& a) { return a.positional[0].text(); }
const Dict& self_dict(Arguments& a) { return a.positional[0].as_dict(); }
const List& self_list(Arguments& a) { return a.positional[0].as_list(); }

Value texts(std::vector<std::string> parts, bool is_tuple = false) {
  Items items;
  for (std::string& part : parts) items.emplace_back(std::move(part));
  return Value::list(std::move(items), is_tuple);
}

Value split_method(Arguments& a, bool from_right) {
  const Value* separator = a.find(1, "sep");
  const int64_t limit = a.get_int(2, "maxsplit", -1);
  if (separator == nullptr || separator->is_none()) {
    return texts(split_whitespace(self_text(a), limit, from_right));
  }
  const std::string text = a.get_text(1, "sep", "");
  if (text.empty()) throw Fault("empty separator");
  return texts(split_text(self_text(a), text, limit, from_right));
}

Value strip_method(Arguments& a, bool left, bool right) {
  const Value* chars = a.find(1, "chars");
  if (chars == nullptr || chars->is_none()) return strip_text(self_text(a), nullptr, left, right);
  const std::string set = a.get_text(1, "chars", "");
  return strip_text(self_text(a), &set, left, right);
}

// startswith and endswith take one text or a tuple of them.
template <typename Check>
Value affix_method(Arguments& a, Check check) {
  const Value& affix = a.require(1, "prefix");
  const Items candidates = affix.is_list() ? affix.as_list().items : Items{affix};
  for (const Value& candidate : candidates) {
    if (!candidate.is_string()) {
      throw Fault(std::string("expected a str or a tuple of str, not ") + candidate.type_name());
    }
    if (check(self_text(a), candidate.text())) return true;
  }
  return false;
}

Value find_text(Arguments& a, bool from_right, bool must_exist) {
  const std::string& text = self_text(a);
  const std::string part = a.get_text(1, "sub", "");
  const size_t at = from_right ? text.rfind(part) : text.find(part);
  if (at == std::string::npos) {
    if (must_exist) throw Fault("substring not found");
    return -1;
  }
  return count_chars(std::string_view(text).substr(0, at));
}

Value partition_method(Arguments& a, bool from_right) {
  const std::string& text = self_text(a);
  const std::string separator = a.get_text(1, "sep", "");
  if (separator.empty()) throw Fault("empty separator");
  const size_t at = from_right ? text.rfind(separator) : text.find(separator);
  if (at == std::string::npos) {
    return from_right ? texts({"", "", text}, true) : texts({text, "", ""}, true);
  }
  return texts({text.substr(0, at), separator, text.substr(at + separator.size())}, true);
}

Value pad_method(Arguments& a, bool left, bool right, const char* default_fill) {
  const int64_t width = a.get_int(1, "width", 0);
  const std::string fill = a.get_text(2, "fillchar", default_fill);
  if (count_chars(fill) != 1) throw Fault("the fill character must be exactly one character long");
  const auto size = static_cast<int64_t>(count_chars(self_text(a)));
  if (width <= size) return self_text(a);
  Budget::check_text(static_cast<size_t>(width) * fill.size());
  const int64_t missing = width - size;
  // str.center puts the odd character to the left when the width is odd.
  const int64_t before = left && right ? missing / 2 + (missing & width & 1) : left ? missing : 0;
  std::string out;
  for (int64_t i = 0; i < before; ++i) out += fill;
  out += self_text(a);
  for (int64_t i = before; i < missing; ++i) out += fill;
  return Value(std::move(out));
}

template <typename Predicate>
Value all_chars(Arguments& a, Predicate predicate) {
  const auto chars = split_chars(self_text(a));
  return !chars.empty() && std::all_of(chars.begin(), chars.end(), [&](std::string_view c) {
    return predicate(decode_char(c, 0));
  });
}

Value join_method(Arguments& a) {
  std::string out;
  bool is_first = true;
  for (const Value& item : iterate(a.require(1, "iterable"), a.budget)) {
    if (!item.is_string()) {
      throw Fault(std::string("join: expected str items, found ") + item.type_name());
    }
    if (!std::exchange(is_first, false)) out += self_text(a);
    out += item.text();
    Budget::check_text(out.size());
  }
  return Value(std::move(out));
}

Value replace_method(Arguments& a) {
  return replace_text(self_text(a), a.require(1, "old").is_string() ? a.get_text(1, "old", "") : "",
                      a.get_text(2, "new", ""), a.get_int(3, "count", -1));
}

Value test_method(Arguments& a, std::string_view name) {
  Arguments inner{{a.positional[0]}, {}, a.budget};
  return find_test(name)(inner);
}

const Table& text_methods() {
  static const Table table = {
      {"split", [](Arguments& a) { return split_method(a, false); }},
      {"rsplit", [](Arguments& a) { return split_method(a, true); }},
      {"splitlines",
       [](Arguments& a) {
         return texts(split_lines(self_text(a), a.get_bool(1, "keepends", false)));
       }},
      {"strip", [](Arguments& a) { return strip_method(a, true, true); }},
      {"lstrip", [](Arguments& a) { return strip_method(a, true, false); }},
      {"rstrip", [](Arguments& a) { return strip_method(a, false, true); }},
      {"startswith",
       [](Arguments& a) {
         return affix_method(a, [](const auto& t, const auto& p) { return t.starts_with(p); });
       }},
      {"endswith",
       [](Arguments& a) {
         return affix_method(a, [](const auto& t, const auto& p) { return t.ends_with(p); });
       }},
      {"removeprefix",
       [](Arguments& a) -> Value {
         const std::string prefix = a.get_text(1, "prefix", "");
         return self_text(a).starts_with(prefix) ? self_text(a).substr(prefix.size())
                                                 : self_text(a);
       }},
      {"removesuffix",
       [](Arguments& a) -> Value {
         const std::string suffix = a.get_text(1, "suffix", "");
         const std::string& text = self_text(a);
         return text.ends_with(suffix) ? text.substr(0, text.size() - suffix.size()) : text;
       }},
      {"replace", replace_method},
      {"upper", [](Arguments& a) -> Value { return upper_text(self_text(a)); }},
      {"lower", [](Arguments& a) -> Value { return lower_text(self_text(a)); }},
      {"title", [](Arguments& a) -> Value { return title_text(self_text(a)); }},
      {"capitalize", [](Arguments& a) -> Value { return capitalize_text(self_text(a)); }},
      {"find", [](Arguments& a) { return find_text(a, false, false); }},
      {"rfind", [](Arguments& a) { return find_text(a, true, false); }},
      {"index", [](Arguments& a) { return find_text(a, false, true); }},
      {"rindex", [](Arguments& a) { return find_text(a, true, true); }},
      {"count",
       [](Arguments& a) -> Value {
         const std::string part = a.get_text(1, "sub", "");
         if (part.empty()) return count_chars(self_text(a)) + 1;
         return split_text(self_text(a), part, -1, false).size() - 1;
       }},
      {"join", join_method},
      {"partition", [](Arguments& a) { return partition_method(a, false); }},
      {"rpartition", [](Arguments& a) { return partition_method(a, true); }},
      {"center", [](Arguments& a) { return pad_method(a, true, true, " "); }},
      {"ljust", [](Arguments& a) { return pad_method(a, false, true, " "); }},
      {"rjust", [](Arguments& a) { return pad_method(a, true, false, " "); }},
      {"isdigit",
       [](Arguments& a) { return all_chars(a, [](char32_t c) { return is_number(c); }); }},
      {"isalpha",
       [](Arguments& a) { return all_chars(a, [](char32_t c) { return is_letter(c); }); }},
      {"isalnum",
       [](Arguments& a) {
         return all_chars(a, [](char32_t c) { return is_letter(c) || is_number(c); });
       }},
      {"isspace",
       [](Arguments& a) {
         return all_chars(a, [](char32_t c) { return is_white_space(c) || (c >= 28 && c <= 31); });
       }},
      {"isupper", [](Arguments& a) { return test_method(a, "upper"); }},
      {"islower", [](Arguments& a) { return test_method(a, "lower"); }},
  };
  return table;
}

Value dict_part(Arguments& a, bool keys, bool values) {
  Items items;
  for (const auto& [key, value] : self_dict(a).entries) {
    items.push_back(keys && values ? Value::list({key, value}, /*is_tuple=*/true)
                    : keys         ? key
                                   : value);
  }
  a.budget.spend(static_cast<int64_t>(items.size()));
  return Value::list(std::move(items));
}

const Table& dict_methods() {
  static const Table table = {
      {"get",
       [](Arguments& a) {
         const Value* found = self_dict(a).find(a.require(1, "key"));
         return found != nullptr ? *found : a.get(2, "default", Value());
       }},
      {"items", [](Arguments& a) { return dict_part(a, true, true); }},
      {"keys", [](Arguments& a) { return dict_part(a, true, false); }},
      {"values", [](Arguments& a) { return dict_part(a, false, true); }},
      {"copy", [](Arguments& a) { return Value(std::make_shared<Dict>(self_dict(a))); }},
  };
  return table;
}

const Table& list_methods() {
  static const Table table = {
      {"index",
       [](Arguments& a) -> Value {
         const Items& items = self_list(a).items;
         for (size_t i = 0; i < items.size(); ++i) {
           if (equals(items[i], a.require(1, "value"), a.budget)) return i;
         }
         throw Fault(to_repr(a.require(1, "value"), a.budget) + " is not in list");
       }},
      {"count",
       [](Arguments& a) -> Value {
         int64_t count = 0;
         for (const Value& item : self_list(a).items) {
           count += equals(item, a.require(1, "value"), a.budget);
         }
         return count;
       }},
      {"copy", [](Arguments& a) { return Value::list(self_list(a).items); }},
  };
  return table;
}

bool changes_object(const Value& object, std::string_view name) {
  static constexpr std::string_view kList[] = {"append", "clear",  "extend",  "insert",
                                               "pop",    "remove", "reverse", "sort"};
  static constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  if (object.is_list())
    return std::find(std::begin(kList), std::end(kList), name) != std::end(kList);
  return object.is_dict() && std::find(std::begin(kDict), std::end(kDict), name) != std::end(kDict);
}

}  // namespace

Value find_method(const Value& object, std::string_view name) {
  static const Table none;
  const Table& table = object.is_string() ? text_methods()
                       : object.is_dict() ? dict_methods()
                       : object.is_list() ? list_methods()
                                          : none;
  if (const auto it = table.find(name); it != table.end()) {
    const Function body = it->second;
    Callable method{std::string(name),
                    [object, body, method_name = std::string(name)](Arguments& arguments) {
                      Arguments all{{object}, arguments.named, arguments.budget};
                      all.positional.insert(all.positional.end(), arguments.positional.begin(),
                                            arguments.positional.end());
                      try {
                        return body(all);
                      } catch (const Fault& fault) {
                        throw Fault(method_name + "(): " + fault.what());
                      }
                    },
                    nullptr, "method"};
    return Value(std::make_shared<const Callable>(std::move(method)));
  }
  const std::string type = object.type_name();
  if (changes_object(object, name)) {
    auto refuse = [why = "access to attribute '" + std::string(name) + "' of '" + type +
                         "' object is unsafe."](Arguments&) -> Value { throw Fault(why); };
    return object.is_dict() && object.as_dict().find(name) != nullptr
               ? Value::undefined("")
               : Value(std::make_shared<const Callable>(
                     Callable{std::string(name), refuse, nullptr}));
  }
  return Value::undefined("'" + type + " object' has no attribute '" + std::string(name) + "'");
}

}  // namespace strata::text::jinja
