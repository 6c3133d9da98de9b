// Arithmetic, attributes, subscripts and slices, with Python's rules.
#include <cmath>

#include "strata/text/jinja/format_spec.h"
#include "strata/text/jinja/interpreter.h"
#include "strata/text/jinja/marked.h"
#include "strata/text/utf8.h"

namespace strata::text::jinja {
namespace {

[[noreturn]] void throw_operands(const std::string& op, const Value& a, const Value& b) {
  throw Fault("unsupported operand type(s) for " + op + ": '" + a.type_name() + "' and '" +
              b.type_name() + "'");
}

[[noreturn]] void throw_overflow() { throw Fault("found an integer beyond 64 bits"); }

int64_t floor_divide(int64_t a, int64_t b) {
  if (b == -1) {
    if (a == INT64_MIN) throw_overflow();
    return -a;
  }
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) throw Fault("0.0 cannot be raised to a negative power");
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  int64_t result = 1;
  if (base == 0 || base == 1) return exponent == 0 ? int64_t{1} : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  for (; exponent > 0; --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) throw_overflow();
  }
  return result;
}

Value integer_operation(const std::string& op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "+") {
    if (__builtin_add_overflow(a, b, &result)) throw_overflow();
  } else if (op == "-") {
    if (__builtin_sub_overflow(a, b, &result)) throw_overflow();
  } else if (op == "*") {
    if (__builtin_mul_overflow(a, b, &result)) throw_overflow();
  } else if (op == "**") {
    return integer_power(a, b);
  } else {
    if (b == 0) throw Fault("division by zero");
    if (op == "/") return static_cast<double>(a) / static_cast<double>(b);
    if (op == "//") return floor_divide(a, b);
    return b == -1 ? int64_t{0} : a - floor_divide(a, b) * b;
  }
  return result;
}

Value float_operation(const std::string& op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") return std::pow(a, b);
  if (b == 0) throw Fault("float division by zero");
  if (op == "/") return a / b;
  if (op == "//") return std::floor(a / b);
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value repeat(const Value& sequence, int64_t times) {
  if (times < 0) times = 0;
  if (sequence.is_string()) {
    if (times > 0) {
      Budget::check_text(sequence.text().size() > Budget::kMaxTextBytes / static_cast<size_t>(times)
                             ? Budget::kMaxTextBytes + 1
                             : 0);
    }
    std::string out;
    for (int64_t i = 0; i < times && !sequence.text().empty(); ++i) out += sequence.text();
    return marked_as(sequence, Value(std::move(out)));
  }
  const Items& items = sequence.as_list().items;
  if (times > 0 && items.size() > Budget::kMaxItems / static_cast<size_t>(times)) {
    Budget::check_items(Budget::kMaxItems + 1);
  }
  Items out;
  for (int64_t i = 0; i < times && !items.empty(); ++i)
    out.insert(out.end(), items.begin(), items.end());
  return Value::list(std::move(out), sequence.as_list().is_tuple);
}

}  // namespace

Value binary_operation(const std::string& op, const Value& a, const Value& b, Budget& budget) {
  if (a.is_undefined()) throw Fault(*a.as_undefined().why);
  if (op == "%" && a.is_string()) return format_percent(a, b, budget);
  if (b.is_undefined()) throw Fault(*b.as_undefined().why);
  if (a.is_integral() && b.is_integral()) return integer_operation(op, a.integer(), b.integer());
  const bool has_big = a.is_big() || b.is_big(), has_float = a.is_float() || b.is_float();
  if (has_big && !has_float && op != "/" && a.is_number() && b.is_number()) throw_overflow();
  if (a.is_number() && b.is_number()) return float_operation(op, a.number(), b.number());
  if (op == "+" && a.is_string() && b.is_string()) {
    Budget::check_text(a.text().size() + b.text().size());
    if (a.is_marked()) refuse_to_escape(b);
    if (b.is_marked()) refuse_to_escape(a);
    return marked_as(a.is_marked() ? a : b, Value(a.text() + b.text()));
  }
  if (op == "+" && a.is_list() && b.is_list() && a.as_list().is_tuple == b.as_list().is_tuple) {
    Items items = a.as_list().items;
    items.insert(items.end(), b.as_list().items.begin(), b.as_list().items.end());
    budget.spend(static_cast<int64_t>(items.size()));
    return Value::list(std::move(items), a.as_list().is_tuple);
  }
  const bool is_sequence_a = a.is_string() || a.is_list(),
             is_sequence_b = b.is_string() || b.is_list();
  if (op == "*" && is_sequence_a && b.is_integral()) return repeat(a, b.integer());
  if (op == "*" && is_sequence_b && a.is_integral()) return repeat(b, a.integer());
  throw_operands(op, a, b);
}

Value get_attribute(const Value& object, std::string_view name) {
  if (object.is_undefined()) throw Fault(*object.as_undefined().why);
  if (object.is_list() && object.as_list().is_group && (name == "grouper" || name == "list")) {
    return object.as_list().items[name == "list"];
  }
  if (object.is_dict()) {
    if (!object.as_dict().is_namespace) {
      Value method = find_method(object, name);
      if (!method.is_undefined()) return method;
    }
    const Value* item = object.as_dict().find(name);
    if (item != nullptr) return *item;
  } else if (object.is_callable()) {
    if (object.as_callable().attribute) return object.as_callable().attribute(name);
  } else {
    return find_method(object, name);
  }
  return Value::undefined(std::string("'") + object.type_name() + " object' has no attribute '" +
                          std::string(name) + "'");
}

Value get_item(const Value& object, const Value& key) {
  if (object.is_undefined()) throw Fault(*object.as_undefined().why);
  if (object.is_dict()) {
    if (const Value* item = object.as_dict().find(key)) return *item;
  } else if ((object.is_list() || object.is_string()) && key.is_integral()) {
    const int64_t size = length_of(object);
    const int64_t index = key.integer() < 0 ? key.integer() + size : key.integer();
    if (index >= 0 && index < size) {
      if (object.is_list()) return object.as_list().items[static_cast<size_t>(index)];
      return marked_as(object, Value(split_chars(object.text())[static_cast<size_t>(index)]));
    }
    return Value::undefined(std::string("'") + object.type_name() + " object' has no element " +
                            std::to_string(key.integer()));
  }
  if (key.is_string()) return get_attribute(object, key.text());
  return Value::undefined(std::string("'") + object.type_name() + " object' has no such element");
}

Value get_slice(const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (object.is_undefined()) throw Fault(*object.as_undefined().why);
  if (!object.is_string() && !object.is_list()) {
    throw Fault(std::string("'") + object.type_name() + "' object cannot be sliced");
  }
  const auto read = [](const Value& value, int64_t fallback) {
    if (value.is_none()) return fallback;
    if (!value.is_integral()) throw Fault("slice indices must be integers or none");
    return value.integer();
  };
  const int64_t by = read(step, 1);
  if (by == 0) throw Fault("slice step cannot be zero");
  const int64_t size = length_of(object);
  const auto clamp = [&](const Value& value, int64_t fallback) {
    int64_t at = read(value, fallback);
    if (!value.is_none() && at < 0) at = std::max<int64_t>(at, -size - 1) + size;
    return std::clamp<int64_t>(at, by > 0 ? 0 : -1, by > 0 ? size : size - 1);
  };
  const int64_t from = clamp(start, by > 0 ? 0 : size - 1);
  const int64_t to = clamp(stop, by > 0 ? size : -1);
  std::vector<size_t> indices;
  for (int64_t i = from; by > 0 ? i < to : i > to;) {
    indices.push_back(static_cast<size_t>(i));
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  if (object.is_string()) {
    const auto chars = split_chars(object.text());
    std::string out;
    for (const size_t i : indices) out += chars[i];
    return marked_as(object, Value(std::move(out)));
  }
  Items items;
  for (const size_t i : indices) items.push_back(object.as_list().items[i]);
  return Value::list(std::move(items), object.as_list().is_tuple);
}

}  // namespace strata::text::jinja
