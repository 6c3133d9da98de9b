// Construction, truth, equality, order and iteration of values.
#include "strata/text/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include "strata/base/exact_json.h"
#include "strata/text/utf8.h"

namespace strata::text::jinja {

Value Value::list(Items items, bool is_tuple) {
  Budget::check_items(items.size());
  return Value(std::make_shared<const List>(List{std::move(items), is_tuple}));
}

Value Value::generator(Items items) {
  Budget::check_items(items.size());
  return Value(std::make_shared<Generator>(Generator{.items = std::move(items)}));
}

Value Value::undefined(std::string why) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(why))});
}

Value Value::from_json(const Json& json, int depth) {
  if (depth > Budget::kMaxDepth) throw Fault("the data is nested more than 200 levels deep");
  switch (json.type()) {
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return json.get<int64_t>();
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)) return json.get<int64_t>();
      return big(std::to_string(json.get<uint64_t>()));
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return replace_invalid_utf8(json.get_ref<const std::string&>());
    case Json::value_t::array: {
      Items items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(from_json(item, depth + 1));
      return list(std::move(items));
    }
    case Json::value_t::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [key, value] : json.items()) {
        dict->entries.emplace_back(replace_invalid_utf8(key), from_json(value, depth + 1));
      }
      return Value(std::move(dict));
    }
    default:
      if (const auto digits = big_integer(json)) return big(std::string(*digits));
      return {};
  }
}

Value Value::marked(std::string text) {
  Value value(std::move(text));
  value.is_marked_ = true;
  return value;
}

Value Value::big(std::string digits) {
  return Value(BigInteger{std::make_shared<const std::string>(std::move(digits))});
}

void Value::take_apart() noexcept {
  const bool is_last = std::visit(
      [](const auto& held) {
        if constexpr (requires { held.use_count(); }) return held.use_count() == 1;
        return false;
      },
      data_);
  if (!is_last) return;
  thread_local std::vector<Data>* waiting = nullptr;  // of the outermost call
  std::vector<Data> own;
  const bool is_outermost = waiting == nullptr;
  if (is_outermost) waiting = &own;
  try {
    waiting->push_back(std::move(data_));
  } catch (const std::bad_alloc&) {  // then it goes with this value, as deep as it is
  }
  if (!is_outermost) return;
  while (!own.empty()) {
    const Data next = std::move(own.back());
    own.pop_back();
  }
  waiting = nullptr;
}

int64_t Value::integer() const {
  return is_bool() ? std::get<bool>(data_) : std::get<int64_t>(data_);
}

double Value::number() const {
  if (is_big()) {
    const double rounded = std::strtod(big_digits().c_str(), nullptr);
    if (std::isinf(rounded)) throw Fault("int too large to convert to float");
    return rounded;
  }
  return is_float() ? std::get<double>(data_) : static_cast<double>(integer());
}

const char* Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int() || is_big()) return "int";
  if (is_float()) return "float";
  if (is_string()) return "str";
  if (is_list()) return as_list().is_tuple ? "tuple" : "list";
  if (is_dict()) return as_dict().is_namespace ? "Namespace" : "dict";
  if (is_generator()) return "generator";
  return as_callable().type_name;
}

namespace {

// Whether the numbers are told apart by all their digits: a double has no place for those of an
// integer beyond 2^53.
bool differ_by_digits(const Value& a, const Value& b) {
  const auto has_digits = [](const Value& value) {
    return !value.is_float() || std::isfinite(value.number());
  };
  const auto is_large = [](const Value& value) {
    return value.is_big() || (value.is_float() && std::abs(value.number()) >= 0x1p53);
  };
  if (a.is_float() && b.is_float()) return false;
  return (is_large(a) || is_large(b)) && has_digits(a) && has_digits(b);
}

int compare_digits(const Value& a, const Value& b) {
  const auto digits_of = [](const Value& value) {
    if (value.is_big()) return value.big_digits();
    // What a fraction loses here, none of the integers that it is compared with can tell.
    if (value.is_float()) return fmt::format("{:.0f}", std::trunc(value.number()));
    return std::to_string(value.integer());
  };
  const std::string x = digits_of(a), y = digits_of(b);
  const bool is_negative = x[0] == '-';
  if (is_negative != (y[0] == '-')) return is_negative ? -1 : 1;
  const int order = x.size() != y.size() ? (x.size() < y.size() ? -1 : 1) : x.compare(y);
  return is_negative ? -order : order;
}

int order_of(auto x, auto y) { return x < y ? -1 : x > y ? 1 : 0; }

// Of two numbers: 0 for those that are equal, and beside a NaN.
int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return order_of(a.integer(), b.integer());
  if (differ_by_digits(a, b)) return compare_digits(a, b);
  // Beside an infinity any finite number does.
  const auto number = [](const Value& value) { return value.is_big() ? 0.0 : value.number(); };
  return order_of(number(a), number(b));
}

bool is_nan(const Value& value) { return value.is_float() && std::isnan(value.number()); }

bool are_equal_numbers(const Value& a, const Value& b) {
  return !is_nan(a) && !is_nan(b) && compare_numbers(a, b) == 0;
}

bool is_same_key(const Value& a, const Value& b) {
  if (a.is_string() || b.is_string()) return a.is_string() && b.is_string() && a.text() == b.text();
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  return a.is_number() && b.is_number() && are_equal_numbers(a, b);
}

}  // namespace

const Value* Dict::find(const Value& key) const {
  for (const auto& [k, v] : entries) {
    if (is_same_key(k, key)) return &v;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [k, v] : entries) {
    if (k.is_string() && k.text() == key) return &v;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  if (!key.is_string() && !key.is_number() && !key.is_none()) {
    throw Fault(std::string("unhashable type: '") + key.type_name() + "'");
  }
  for (auto& [k, v] : entries) {
    if (is_same_key(k, key)) {
      v = std::move(value);
      return;
    }
  }
  entries.emplace_back(std::move(key), std::move(value));
}

bool is_true(const Value& v) {
  if (v.is_undefined() || v.is_none()) return false;
  if (v.is_number()) return v.is_big() || v.number() != 0;
  if (v.is_string()) return !v.text().empty();
  if (v.is_list()) return !v.as_list().items.empty();
  if (v.is_dict()) return v.as_dict().is_namespace || !v.as_dict().entries.empty();
  return true;
}

bool equals(const Value& a, const Value& b, Budget& budget, int depth) {
  budget.spend();
  if (depth > Budget::kMaxDepth) throw Fault("comparison is nested too deeply");
  if (a.is_number() && b.is_number()) return are_equal_numbers(a, b);
  if (a.is_string() && b.is_string()) return a.text() == b.text();
  if (a.is_list() && b.is_list()) {
    const List &x = a.as_list(), &y = b.as_list();
    if (x.is_tuple != y.is_tuple || x.items.size() != y.items.size()) return false;
    for (size_t i = 0; i < x.items.size(); ++i) {
      if (!equals(x.items[i], y.items[i], budget, depth + 1)) return false;
    }
    return true;
  }
  if (a.is_dict() && b.is_dict()) {
    const Dict &x = a.as_dict(), &y = b.as_dict();
    if (&x == &y) return true;
    if (x.is_namespace || y.is_namespace || x.entries.size() != y.entries.size()) return false;
    for (const auto& [key, value] : x.entries) {
      budget.spend(static_cast<int64_t>(y.entries.size()));
      const Value* other = y.find(key);
      if (other == nullptr || !equals(value, *other, budget, depth + 1)) return false;
    }
    return true;
  }
  if (a.is_callable() && b.is_callable()) return &a.as_callable() == &b.as_callable();
  if (a.is_generator() && b.is_generator()) return &a.as_generator() == &b.as_generator();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

int compare(const Value& a, const Value& b, Budget& budget, int depth) {
  budget.spend();
  if (depth > Budget::kMaxDepth) throw Fault("comparison is nested too deeply");
  if (a.is_number() && b.is_number()) return compare_numbers(a, b);
  if (a.is_string() && b.is_string()) return order_of(a.text().compare(b.text()), 0);
  if (a.is_list() && b.is_list() && a.as_list().is_tuple == b.as_list().is_tuple) {
    const Items &x = a.as_list().items, &y = b.as_list().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (equals(x[i], y[i], budget, depth + 1)) continue;
      return compare(x[i], y[i], budget, depth + 1);
    }
    return order_of(x.size(), y.size());
  }
  if (a.is_undefined()) throw Fault(*a.as_undefined().why);
  if (b.is_undefined()) throw Fault(*b.as_undefined().why);
  throw Fault(std::string("no order between '") + a.type_name() + "' and '" + b.type_name() + "'");
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  if (container.is_string()) {
    if (!item.is_string()) {
      throw Fault(std::string("'in <string>' requires string as left operand, not ") +
                  item.type_name());
    }
    return container.text().find(item.text()) != std::string::npos;
  }
  if (container.is_dict()) {
    budget.spend(static_cast<int64_t>(container.as_dict().entries.size()));
    if (item.is_dict() || (item.is_list() && !item.as_list().is_tuple)) {
      throw Fault(std::string("unhashable type: '") + item.type_name() + "'");
    }
    return container.as_dict().find(item) != nullptr;
  }
  if (container.is_list()) {
    for (const Value& candidate : container.as_list().items) {
      if (equals(candidate, item, budget)) return true;
    }
    return false;
  }
  if (container.is_undefined()) return false;
  if (container.is_generator()) {
    Generator& generator = container.as_generator();
    while (generator.num_taken < generator.items.size()) {
      if (equals(generator.items[generator.num_taken++], item, budget)) return true;
    }
    return false;
  }
  throw Fault(std::string("argument of type '") + container.type_name() + "' is not iterable");
}

Items iterate(const Value& value, Budget& budget) {
  Items items;
  if (value.is_list()) {
    items = value.as_list().items;
  } else if (value.is_dict() && !value.as_dict().is_namespace) {
    for (const auto& [key, ignored] : value.as_dict().entries) items.push_back(key);
  } else if (value.is_string()) {
    Budget::check_items(value.text().size() / 4);
    for (const std::string_view c : split_chars(value.text())) items.emplace_back(c);
  } else if (value.is_generator()) {
    Generator& generator = value.as_generator();
    items.assign(generator.items.begin() + static_cast<std::ptrdiff_t>(generator.num_taken),
                 generator.items.end());
    generator.num_taken = generator.items.size();
  } else if (!value.is_undefined()) {
    throw Fault(std::string("'") + value.type_name() + "' object is not iterable");
  }
  budget.spend(static_cast<int64_t>(items.size()));
  return items;
}

int64_t length_of(const Value& value) {
  if (value.is_string()) return static_cast<int64_t>(count_chars(value.text()));
  if (value.is_list()) return static_cast<int64_t>(value.as_list().items.size());
  if (value.is_dict()) return static_cast<int64_t>(value.as_dict().entries.size());
  if (value.is_undefined()) return 0;
  throw Fault(std::string("object of type '") + value.type_name() + "' has no len()" +
              (value.is_generator() ? "; write | list before it" : ""));
}

size_t count_chars(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); }));
}

std::vector<std::string_view> split_chars(std::string_view text) {
  std::vector<std::string_view> chars;
  for (size_t i = 0; i < text.size();) {
    const size_t length = char_length(text, i);
    chars.push_back(text.substr(i, length));
    i += length;
  }
  return chars;
}

const Value* Arguments::find(size_t index, std::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

Value Arguments::get(size_t index, std::string_view name, Value fallback) const {
  const Value* value = find(index, name);
  return value == nullptr ? std::move(fallback) : *value;
}

int64_t Arguments::get_int(size_t index, std::string_view name, int64_t fallback) const {
  const Value* value = find(index, name);
  if (value == nullptr || value->is_none()) return fallback;
  if (!value->is_integral()) {
    throw Fault("argument " + std::string(name) + " must be an integer, not " + value->type_name());
  }
  return value->integer();
}

std::string Arguments::get_text(size_t index, std::string_view name, std::string fallback) const {
  const Value* value = find(index, name);
  if (value == nullptr) return fallback;
  if (!value->is_string()) {
    throw Fault("argument " + std::string(name) + " must be a string, not " + value->type_name());
  }
  return value->text();
}

bool Arguments::get_bool(size_t index, std::string_view name, bool fallback) const {
  const Value* value = find(index, name);
  return value == nullptr ? fallback : is_true(*value);
}

const Value& Arguments::require(size_t index, std::string_view name) const {
  const Value* value = find(index, name);
  if (value == nullptr) throw Fault("missing argument '" + std::string(name) + "'");
  return *value;
}

void Arguments::expect_at_most(size_t positional_count,
                               std::initializer_list<std::string_view> names) const {
  if (positional.size() > positional_count) {
    throw Fault("takes at most " + std::to_string(positional_count) + " arguments, " +
                std::to_string(positional.size()) + " were given");
  }
  for (const auto& [key, value] : named) {
    if (std::find(names.begin(), names.end(), key) == names.end()) {
      throw Fault("unexpected keyword argument '" + key + "'");
    }
  }
}

}  // namespace strata::text::jinja
