// The filters that make numbers of values, or texts of numbers.
#include <charconv>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "strata/text/jinja/filters.h"
#include "strata/text/jinja/format_spec.h"
#include "strata/text/jinja/strings.h"

namespace strata::text::jinja {
namespace {

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

// An integer beyond 64 bits, of digits after their sign.
std::optional<Value> big_integer_of(const std::string& digits, int64_t base) {
  if (base != 10) throw Fault("found an integer beyond 64 bits");
  constexpr size_t kMaxDigits = 4300;  // Python's
  const size_t first = digits.starts_with('-') ? 1 : 0;
  if (digits.size() - first > kMaxDigits) return std::nullopt;
  return Value::big(digits.substr(0, first) + digits.substr(digits.find_first_not_of('0', first)));
}

// int(text, base): a sign, the base's prefix, digits with single underscores between.
std::optional<Value> read_integer(std::string_view text, int64_t base) {
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) text.remove_prefix(1);
  const char letter = text.size() > 1 && text[0] == '0' ? static_cast<char>(text[1] | 0x20) : '\0';
  const int64_t prefixed = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
  if (prefixed != 0 && (base == prefixed || base == 0)) {
    text.remove_prefix(2);
    base = prefixed;
    if (text.starts_with('_')) text.remove_prefix(1);
  } else if (base == 0) {
    base = 10;
  }
  if (base < 2 || base > 36 || text.empty()) return std::nullopt;
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') digits += text[i];
    const bool is_alone = i > 0 && i + 1 < text.size() && text[i - 1] != '_';
    if (text[i] == '_' && !is_alone) return std::nullopt;
  }
  if (is_negative) digits.insert(0, 1, '-');
  int64_t number = 0;
  const char* end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, number, static_cast<int>(base));
  if (result.ptr != end || text[0] == '-') return std::nullopt;
  if (result.ec == std::errc()) return Value(number);
  if (result.ec != std::errc::result_out_of_range) return std::nullopt;
  return big_integer_of(digits, base);
}

Value int_filter(Arguments& a) {
  const Value& value = subject(a);
  if (value.is_integral()) return value.integer();
  if (value.is_big()) return value;
  if (value.is_float() && std::isinf(value.number())) {
    throw Fault("cannot convert float infinity to integer");
  }
  if (value.is_string()) {
    const std::string text = strip_text(value.text(), nullptr, true, true);
    if (const auto number = read_integer(text, a.get_int(2, "base", 10))) return *number;
  }
  Arguments as_float{{value, /*default=*/Value()}, {}, a.budget};
  const Value number = float_filter(as_float);
  if (!number.is_number() || !std::isfinite(number.number())) return a.get(1, "default", 0);
  const double whole = std::trunc(number.number());
  return std::abs(whole) < 9.2e18 ? Value(static_cast<int64_t>(whole))
                                  : *read_integer(fmt::format("{:.0f}", whole), 10);
}

// round(value, precision) of an integer: half to even, and an integer again.
int64_t round_integer(int64_t value, int64_t precision) {
  if (precision >= 0) return value;
  if (precision < -18) return 0;
  int64_t unit = 1;
  for (int64_t i = precision; i < 0; ++i) unit *= 10;
  int64_t rest = value % unit;
  if (rest < 0) rest += unit;
  int64_t rounded = 0;
  bool overflows = __builtin_sub_overflow(value, rest, &rounded);
  const bool is_up = rest > unit / 2 || (rest == unit / 2 && rounded / unit % 2 != 0);
  if (is_up) overflows |= __builtin_add_overflow(rounded, unit, &rounded);
  if (overflows) throw Fault("found an integer beyond 64 bits");
  return rounded;
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
  if (subject(a).is_integral() && method == "common") {
    return round_integer(subject(a).integer(), precision);
  }
  if (subject(a).is_big() && method == "common") {
    if (precision < 0) throw Fault("found an integer beyond 64 bits");
    return subject(a);
  }
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
  if (subject(a).is_big()) {
    const std::string& digits = subject(a).big_digits();
    return Value::big(digits.substr(digits.starts_with('-') ? 1 : 0));
  }
  return subject(a).integer() < 0 ? binary_operation("-", 0, subject(a), a.budget)
                                  : subject(a).integer();
}

// "1.5 MB".
Value filesizeformat_filter(Arguments& a) {
  Arguments number{{subject(a), /*default=*/Value()}, {}, a.budget};
  const Value read = float_filter(number);
  if (!read.is_number()) {
    throw Fault(std::string("expected a number, not ") + to_repr(subject(a), a.budget));
  }
  const double bytes = read.number();
  const bool is_binary = a.get_bool(1, "binary", false);
  const double base = is_binary ? 1024 : 1000;
  if (bytes == 1) return "1 Byte";
  if (bytes < base) return std::to_string(static_cast<int64_t>(bytes)) + " Bytes";
  std::string_view letters = "kMGTPEZY";
  double unit = base * base;
  while (bytes >= unit && letters.size() > 1) {
    letters.remove_prefix(1);
    unit *= base;
  }
  const char letter = is_binary && letters[0] == 'k' ? 'K' : letters[0];
  return format_value(base * bytes / unit, ".1f", a.budget) + " " + letter +
         (is_binary ? "iB" : "B");
}

}  // namespace

const FilterTable& number_filters() {
  static const FilterTable table = {
      {"abs", abs_filter},     {"filesizeformat", filesizeformat_filter},
      {"float", float_filter}, {"int", int_filter},
      {"round", round_filter},
  };
  return table;
}

}  // namespace strata::text::jinja
