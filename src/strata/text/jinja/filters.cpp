// The filters that choose: items by a test or a filter, a default, an attribute; and the list of
// all filters.
#include "strata/text/jinja/filters.h"

#include <algorithm>

#include "strata/text/jinja/strings.h"

namespace strata::text::jinja {
namespace {

// Filters of Jinja that are not here, and why.
constexpr std::pair<std::string_view, std::string_view> kRefused[] = {
    {"pprint", "use tojson"},
    {"random", "the same conversation must always give the same text"},
    {"striptags", "use replace"},
    {"urlize", "it is for web pages"},
    {"wordwrap", "a model needs no lines"},
};

// select, reject, selectattr, rejectattr: items whose test (default: truth) is `wanted`. Of a value
// that counts as false (none, 0) there are none, as in Jinja, whose generator looks no further.
Value select_filter(Arguments& a, bool has_attribute, bool wanted) {
  if (!is_true(subject(a))) return Value::generator({});
  const size_t test_at = has_attribute ? 2 : 1;
  if (has_attribute && a.positional.size() < 2) throw Fault("missing parameter for attribute name");
  Function test = nullptr;
  if (a.positional.size() > test_at) {
    const std::string name = to_text(a.positional[test_at], a.budget);
    test = find_test(name);
    if (test == nullptr) throw Fault("no test named '" + name + "'");
  }
  Items out;
  for (Value& item : iterate(subject(a), a.budget)) {
    Value value = has_attribute ? attribute_of(item, a.positional[1], a.budget) : item;
    bool holds;
    if (test == nullptr) {
      holds = is_true(value);
    } else {
      Arguments arguments{{std::move(value)}, a.named, a.budget};
      arguments.positional.insert(arguments.positional.end(),
                                  a.positional.begin() + static_cast<std::ptrdiff_t>(test_at) + 1,
                                  a.positional.end());
      holds = is_true(test(arguments));
    }
    if (holds == wanted) out.push_back(std::move(item));
  }
  return Value::generator(std::move(out));
}

Value map_filter(Arguments& a) {
  if (!is_true(subject(a))) return Value::generator({});
  Items out;
  const bool by_attribute = a.positional.size() == 1;
  Function filter = nullptr;
  if (!by_attribute) {
    const std::string name = to_text(a.positional[1], a.budget);
    filter = find_filter(name);
    if (filter == nullptr) throw Fault(why_no_filter(name));
  }
  if (++a.budget.filter_depth > Budget::kMaxDepth) throw Fault("maximum recursion depth exceeded");
  const Value* attribute = by_attribute ? &a.require(1, "attribute") : nullptr;
  const Value* fallback = by_attribute ? a.find(2, "default") : nullptr;
  for (Value& item : iterate(subject(a), a.budget)) {
    if (by_attribute) {
      Value value = attribute_of(item, *attribute, a.budget);
      out.push_back(value.is_undefined() && fallback != nullptr ? *fallback : std::move(value));
      continue;
    }
    Arguments arguments{{std::move(item)}, a.named, a.budget};
    arguments.positional.insert(arguments.positional.end(), a.positional.begin() + 2,
                                a.positional.end());
    out.push_back(filter(arguments));
  }
  --a.budget.filter_depth;
  return Value::generator(std::move(out));
}

Value default_filter(Arguments& a) {
  const bool also_false = a.get_bool(2, "boolean", false);
  const bool is_missing = subject(a).is_undefined() || (also_false && !is_true(subject(a)));
  return is_missing ? a.get(1, "default_value", "") : subject(a);
}

Value items_filter(Arguments& a) {
  if (subject(a).is_undefined()) return Value::generator({});
  if (!subject(a).is_dict()) throw Fault("can only get item pairs from a mapping");
  Arguments none{{}, {}, a.budget};
  return Value::generator(
      iterate(find_method(subject(a), "items").as_callable().call(none), a.budget));
}

Value tojson_filter(Arguments& a) {
  JsonStyle style;
  style.ensure_ascii = a.get_bool(1, "ensure_ascii", false);
  const Value indent = a.get(2, "indent", Value());
  style.has_indent = !indent.is_none();
  if (style.has_indent) {
    style.item_separator = ",";
    const int64_t width = indent.is_integral() ? indent.integer() : 0;
    if (width > 1000) throw Fault("found an indent of " + std::to_string(width));
    style.indent =
        indent.is_string() ? indent.text() : std::string(std::max<int64_t>(width, 0), ' ');
  }
  if (const Value* separators = a.find(3, "separators"); separators && !separators->is_none()) {
    const Items parts = iterate(*separators, a.budget);
    if (parts.size() != 2 || !parts[0].is_string() || !parts[1].is_string()) {
      throw Fault("separators must be two strings");
    }
    style.item_separator = parts[0].text();
    style.key_separator = parts[1].text();
  }
  style.sort_keys = a.get_bool(4, "sort_keys", false);
  return to_json(subject(a), style, a.budget);
}

Value attr_filter(Arguments& a) {
  const std::string name = a.get_text(1, "name", "");
  if (!subject(a).is_dict()) return get_attribute(subject(a), name);
  if (subject(a).as_dict().is_namespace) return get_attribute(subject(a), name);
  return find_method(subject(a), name);  // attributes only, no items
}

}  // namespace

Value attribute_of(const Value& item, const Value& attribute, Budget& budget) {
  if (!attribute.is_string()) return get_item(item, attribute);
  Value current = item;
  for (const std::string& part :
       split_text(attribute.text(), ".", /*limit=*/-1, /*from_right=*/false)) {
    budget.spend();
    const bool is_index = !part.empty() && part.size() < 10 &&
                          part.find_first_not_of("0123456789") == std::string::npos;
    current =
        get_item(current, is_index ? Value(static_cast<int64_t>(std::stoi(part))) : Value(part));
  }
  return current;
}

const FilterTable& choosing_filters() {
  static const FilterTable table = {
      {"attr", attr_filter},
      {"d", default_filter},
      {"default", default_filter},
      {"items", items_filter},
      {"map", map_filter},
      {"reject",
       [](Arguments& a) { return select_filter(a, /*has_attribute=*/false, /*wanted=*/false); }},
      {"rejectattr",
       [](Arguments& a) { return select_filter(a, /*has_attribute=*/true, /*wanted=*/false); }},
      {"select",
       [](Arguments& a) { return select_filter(a, /*has_attribute=*/false, /*wanted=*/true); }},
      {"selectattr",
       [](Arguments& a) { return select_filter(a, /*has_attribute=*/true, /*wanted=*/true); }},
      {"tojson", tojson_filter},
  };
  return table;
}

Function find_filter(std::string_view name) {
  for (const FilterTable* table :
       {&choosing_filters(), &item_filters(), &text_filters(), &number_filters()}) {
    if (const auto it = table->find(name); it != table->end()) return it->second;
  }
  return nullptr;
}

std::string why_no_filter(std::string_view name) {
  for (const auto& [refused, why] : kRefused) {
    if (refused != name) continue;
    return "the filter '" + std::string(name) +
           "' of Jinja is not supported here: " + std::string(why);
  }
  return "no filter named '" + std::string(name) + "'";
}

}  // namespace strata::text::jinja
