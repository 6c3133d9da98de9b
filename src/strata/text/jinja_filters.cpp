// The filters, each with its value as first argument.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "strata/text/jinja_interpreter.h"
#include "strata/text/jinja_strings.h"
#include "strata/text/utf8.h"

namespace strata::text::jinja {
namespace {

const Value& subject(Arguments& a) { return a.positional[0]; }
std::string subject_text(Arguments& a) { return to_text(subject(a), a.budget); }

// "a.b.0" or a number: the attribute of an item that map, sort and their like work on.
Value attribute_of(const Value& item, const Value& attribute, Budget& budget) {
  if (!attribute.is_string()) return get_item(item, attribute);
  Value current = item;
  for (const std::string& part : split_text(attribute.text(), ".", -1, false)) {
    budget.spend();
    const bool is_index = !part.empty() && part.size() < 10 &&
                          part.find_first_not_of("0123456789") == std::string::npos;
    current =
        get_item(current, is_index ? Value(static_cast<int64_t>(std::stoi(part))) : Value(part));
  }
  return current;
}

// What an item is ordered by: its attribute if asked for, without case unless asked for.
Value sort_key(const Value& item, const Value& attribute, bool case_sensitive, Budget& budget) {
  Value key = attribute.is_none() ? item : attribute_of(item, attribute, budget);
  return key.is_string() && !case_sensitive ? Value(lower_text(key.text())) : key;
}

Items sorted(Items items, const Value& attribute, bool case_sensitive, bool reverse,
             Budget& budget) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items) {
    keyed.emplace_back(sort_key(item, attribute, case_sensitive, budget), std::move(item));
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& x, const auto& y) {
    return reverse ? compare(y.first, x.first, budget) < 0 : compare(x.first, y.first, budget) < 0;
  });
  Items out;
  for (auto& [key, item] : keyed) out.push_back(std::move(item));
  return out;
}

Value sort_filter(Arguments& a) {
  return Value::list(sorted(iterate(subject(a), a.budget), a.get(3, "attribute", Value()),
                            a.get_bool(2, "case_sensitive", false), a.get_bool(1, "reverse", false),
                            a.budget));
}

Value dictsort_filter(Arguments& a) {
  if (!subject(a).is_dict())
    throw Fault(std::string("expected a dict, not ") + subject(a).type_name());
  const std::string by = a.get_text(2, "by", "key");
  if (by != "key" && by != "value") throw Fault("you can only sort by either \"key\" or \"value\"");
  Items pairs;
  for (const auto& [key, value] : subject(a).as_dict().entries) {
    pairs.push_back(Value::list({key, value}, /*is_tuple=*/true));
  }
  return Value::list(sorted(std::move(pairs), by == "key" ? 0 : 1,
                            a.get_bool(1, "case_sensitive", false), a.get_bool(3, "reverse", false),
                            a.budget));
}

Value unique_filter(Arguments& a) {
  Items out, seen;
  for (Value& item : iterate(subject(a), a.budget)) {
    Value key = sort_key(item, a.get(2, "attribute", Value()),
                         a.get_bool(1, "case_sensitive", false), a.budget);
    const bool is_known = std::any_of(
        seen.begin(), seen.end(), [&](const Value& other) { return equals(key, other, a.budget); });
    if (is_known) continue;
    seen.push_back(std::move(key));
    out.push_back(std::move(item));
  }
  return Value::list(std::move(out));
}

Value extreme_filter(Arguments& a, int sign) {
  const Items items = iterate(subject(a), a.budget);
  if (items.empty()) return Value::undefined("no aggregated item, sequence was empty");
  const Value attribute = a.get(2, "attribute", Value());
  const bool case_sensitive = a.get_bool(1, "case_sensitive", false);
  const Value* best = &items[0];
  for (const Value& item : items) {
    const int order = compare(sort_key(item, attribute, case_sensitive, a.budget),
                              sort_key(*best, attribute, case_sensitive, a.budget), a.budget);
    if (order * sign > 0) best = &item;
  }
  return *best;
}

Value sum_filter(Arguments& a) {
  const Value attribute = a.get(1, "attribute", Value());
  Value sum = a.get(2, "start", 0);
  for (const Value& item : iterate(subject(a), a.budget)) {
    sum = binary_operation(
        "+", sum, attribute.is_none() ? item : attribute_of(item, attribute, a.budget), a.budget);
  }
  return sum;
}

// select, reject, selectattr, rejectattr: items whose test (default: truth) is `wanted`.
Value select_filter(Arguments& a, bool has_attribute, bool wanted) {
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
  return Value::list(std::move(out));
}

Value map_filter(Arguments& a) {
  Items out;
  const bool by_attribute = a.positional.size() == 1;
  Function filter = nullptr;
  if (!by_attribute) {
    const std::string name = to_text(a.positional[1], a.budget);
    filter = find_filter(name);
    if (filter == nullptr) throw Fault("no filter named '" + name + "'");
  }
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
  return Value::list(std::move(out));
}

Value join_filter(Arguments& a) {
  const std::string separator = to_text(a.get(1, "d", ""), a.budget);
  const Value attribute = a.get(2, "attribute", Value());
  std::string out;
  bool is_first = true;
  for (const Value& item : iterate(subject(a), a.budget)) {
    if (!std::exchange(is_first, false)) out += separator;
    out += to_text(attribute.is_none() ? item : attribute_of(item, attribute, a.budget), a.budget);
    Budget::check_text(out.size());
  }
  return Value(std::move(out));
}

Value default_filter(Arguments& a) {
  const bool also_false = a.get_bool(2, "boolean", false);
  const bool is_missing = subject(a).is_undefined() || (also_false && !is_true(subject(a)));
  return is_missing ? a.get(1, "default_value", "") : subject(a);
}

Value first_filter(Arguments& a) {
  const Items items = iterate(subject(a), a.budget);
  return items.empty() ? Value::undefined("no first item, sequence was empty") : items.front();
}

Value last_filter(Arguments& a) {
  const Items items = iterate(subject(a), a.budget);
  return items.empty() ? Value::undefined("no last item, sequence was empty") : items.back();
}

Value reverse_filter(Arguments& a) {
  if (!subject(a).is_string()) {
    Items items = iterate(subject(a), a.budget);
    std::reverse(items.begin(), items.end());
    return Value::list(std::move(items));
  }
  return get_slice(subject(a), Value(), Value(), -1);
}

Value items_filter(Arguments& a) {
  if (subject(a).is_undefined()) return Value::list({});
  if (!subject(a).is_dict()) throw Fault("can only get item pairs from a mapping");
  Arguments none{{}, {}, a.budget};
  return find_method(subject(a), "items").as_callable().call(none);
}

Value trim_filter(Arguments& a) {
  const Value* chars = a.find(1, "chars");
  if (chars == nullptr || chars->is_none()) return strip_text(subject_text(a), nullptr, true, true);
  const std::string set = a.get_text(1, "chars", "");
  return strip_text(subject_text(a), &set, true, true);
}

Value replace_filter(Arguments& a) {
  return replace_text(subject_text(a), to_text(a.require(1, "old"), a.budget),
                      to_text(a.require(2, "new"), a.budget), a.get_int(3, "count", -1));
}

Value indent_filter(Arguments& a) {
  const Value width = a.get(1, "width", 4);
  if (width.is_integral() && (width.integer() < 0 || width.integer() > 10'000)) {
    throw Fault("found a width of " + std::to_string(width.integer()));
  }
  const std::string unit = width.is_string() ? width.text()
                           : width.is_integral()
                               ? std::string(static_cast<size_t>(width.integer()), ' ')
                               : throw Fault("the width must be an integer or a string");
  const bool first = a.get_bool(2, "first", false), blank = a.get_bool(3, "blank", false);
  const std::string text = subject_text(a);
  std::string out = first ? unit : "";
  // Jinja splits text + "\n" into lines, so that a final newline survives.
  const std::vector<std::string> lines = split_lines(text + "\n", false);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += (blank || !lines[i].empty()) ? "\n" + unit : "\n";
    out += lines[i];
    Budget::check_text(out.size());
  }
  return Value(std::move(out));
}

Value escape_filter(Arguments& a) {
  std::string out;
  for (const char c : subject_text(a)) {
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
  return Value(std::move(out));
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

Value int_filter(Arguments& a) {
  const Value fallback = a.get(1, "default", 0);
  const Value& value = subject(a);
  if (value.is_integral()) return value.integer();
  const double number = [&] {
    if (value.is_float()) return value.number();
    if (!value.is_string()) return std::nan("");
    const std::string text = strip_text(value.text(), nullptr, true, true);
    double parsed = 0;
    const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
    const auto result = std::from_chars(begin, text.data() + text.size(), parsed);
    return result.ec == std::errc() && result.ptr == text.data() + text.size() ? parsed
                                                                               : std::nan("");
  }();
  if (std::isnan(number) || std::abs(number) >= 9.2e18) return fallback;
  return static_cast<int64_t>(number);
}

Value float_filter(Arguments& a) {
  const Value& value = subject(a);
  if (value.is_number()) return value.number();
  if (!value.is_string()) return a.get(1, "default", 0.0);
  const std::string text = strip_text(value.text(), nullptr, true, true);
  double parsed = 0;
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto result = std::from_chars(begin, text.data() + text.size(), parsed);
  const bool is_whole = result.ec == std::errc() && result.ptr == text.data() + text.size();
  return is_whole ? Value(parsed) : a.get(1, "default", 0.0);
}

Value round_filter(Arguments& a) {
  if (!subject(a).is_number())
    throw Fault(std::string("expected a number, not ") + subject(a).type_name());
  const std::string method = a.get_text(2, "method", "common");
  const int64_t precision = a.get_int(1, "precision", 0);
  if (method != "common" && method != "ceil" && method != "floor") {
    throw Fault("method must be common, ceil or floor");
  }
  if (precision < -300 || precision > 300) throw Fault("found a precision beyond 300");
  const double value = subject(a).number();
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return std::ceil(value * scale) / scale;
  if (method == "floor") return std::floor(value * scale) / scale;
  if (precision == 0) return std::nearbyint(value);  // half to even, as Python
  if (precision < 0 || !std::isfinite(value)) return std::nearbyint(value * scale) / scale;
  char digits[700];  // round() of Python rounds the exact decimal value: so does printf
  std::snprintf(digits, sizeof digits, "%.*f", static_cast<int>(precision), value);
  return std::strtod(digits, nullptr);
}

Value abs_filter(Arguments& a) {
  if (!subject(a).is_number())
    throw Fault(std::string("expected a number, not ") + subject(a).type_name());
  if (subject(a).is_float()) return std::abs(subject(a).number());
  return subject(a).integer() < 0 ? binary_operation("-", 0, subject(a), a.budget)
                                  : subject(a).integer();
}

Value batch_filter(Arguments& a) {
  const int64_t size = a.get_int(1, "linecount", 0);
  if (size < 1) throw Fault("linecount must be positive");
  const Value fill = a.get(2, "fill_with", Value());
  Items out, row;
  for (Value& item : iterate(subject(a), a.budget)) {
    row.push_back(std::move(item));
    if (static_cast<int64_t>(row.size()) == size)
      out.push_back(Value::list(std::exchange(row, {})));
  }
  if (!row.empty()) {
    a.budget.spend(fill.is_none() ? 0 : size);
    while (!fill.is_none() && static_cast<int64_t>(row.size()) < size) row.push_back(fill);
    out.push_back(Value::list(std::move(row)));
  }
  return Value::list(std::move(out));
}

Value groupby_filter(Arguments& a) {
  const Value& attribute = a.require(1, "attribute");
  const bool case_sensitive = a.get_bool(3, "case_sensitive", false);
  Items out, group;
  Value group_key;
  const auto close = [&] {
    if (group.empty()) return;
    const Value name = attribute_of(group.front(), attribute, a.budget);
    out.push_back(Value::list({name, Value::list(std::exchange(group, {}))}, /*is_tuple=*/true));
  };
  for (Value& item :
       sorted(iterate(subject(a), a.budget), attribute, case_sensitive, false, a.budget)) {
    Value key = sort_key(item, attribute, case_sensitive, a.budget);
    if (!group.empty() && !equals(key, group_key, a.budget)) close();
    group_key = std::move(key);
    group.push_back(std::move(item));
  }
  close();
  return Value::list(std::move(out));
}

Value attr_filter(Arguments& a) {
  const std::string name = a.get_text(1, "name", "");
  if (!subject(a).is_dict()) return get_attribute(subject(a), name);
  if (subject(a).as_dict().is_namespace) return get_attribute(subject(a), name);
  return find_method(subject(a), name);  // attributes only, no items
}

const std::unordered_map<std::string_view, Function>& filters() {
  const Function length = [](Arguments& a) -> Value { return length_of(subject(a)); };
  const Function same_text = [](Arguments& a) -> Value { return subject_text(a); };
  static const std::unordered_map<std::string_view, Function> table = {
      {"abs", abs_filter},
      {"attr", attr_filter},
      {"batch", batch_filter},
      {"capitalize", [](Arguments& a) -> Value { return capitalize_text(subject_text(a)); }},
      {"count", length},
      {"d", default_filter},
      {"default", default_filter},
      {"dictsort", dictsort_filter},
      {"e", escape_filter},
      {"escape", escape_filter},
      {"first", first_filter},
      {"float", float_filter},
      {"groupby", groupby_filter},
      {"indent", indent_filter},
      {"int", int_filter},
      {"items", items_filter},
      {"join", join_filter},
      {"last", last_filter},
      {"length", length},
      {"list", [](Arguments& a) { return Value::list(iterate(subject(a), a.budget)); }},
      {"lower", [](Arguments& a) -> Value { return lower_text(subject_text(a)); }},
      {"map", map_filter},
      {"max", [](Arguments& a) { return extreme_filter(a, 1); }},
      {"min", [](Arguments& a) { return extreme_filter(a, -1); }},
      {"reject", [](Arguments& a) { return select_filter(a, false, false); }},
      {"rejectattr", [](Arguments& a) { return select_filter(a, true, false); }},
      {"replace", replace_filter},
      {"reverse", reverse_filter},
      {"round", round_filter},
      {"safe", same_text},
      {"select", [](Arguments& a) { return select_filter(a, false, true); }},
      {"selectattr", [](Arguments& a) { return select_filter(a, true, true); }},
      {"sort", sort_filter},
      {"string", same_text},
      {"sum", sum_filter},
      {"title", [](Arguments& a) -> Value { return title_text(subject_text(a)); }},
      {"tojson", tojson_filter},
      {"trim", trim_filter},
      {"unique", unique_filter},
      {"upper", [](Arguments& a) -> Value { return upper_text(subject_text(a)); }},
      {"wordcount",
       [](Arguments& a) -> Value { return split_whitespace(subject_text(a), -1, false).size(); }},
  };
  return table;
}

}  // namespace

Function find_filter(std::string_view name) {
  const auto it = filters().find(name);
  return it == filters().end() ? nullptr : it->second;
}

}  // namespace strata::text::jinja
