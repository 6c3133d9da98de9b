// The format specification mini-language of Python 3.
#include "strata/text/jinja/format_spec.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "strata/text/utf8.h"

namespace strata::text::jinja {
namespace {

struct Spec {
  std::string fill = " ";
  char align = '\0';  // '<', '>', '^', '=' or none given
  char sign = '-';
  bool has_sign = false, is_alternate = false;
  size_t width = 0;
  char grouping = '\0';  // ',' or '_'
  int precision = -1;
  char type = '\0';
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class SpecReader {
 public:
  explicit SpecReader(std::string_view text) : text_(text) {}

  Spec read() {
    Spec spec;
    read_alignment(spec);
    if (at("+- ")) spec.sign = take(), spec.has_sign = true;
    if (at("#")) spec.is_alternate = take();
    if (at("0")) {
      take();
      if (!has_fill_) spec.fill = "0";
      is_zero_padded_ = spec.align == '\0';
    }
    spec.width = number();
    if (at(",_")) spec.grouping = take();
    if (at(".")) {
      take();
      if (position_ == text_.size() || !is_digit(text_[position_])) {
        throw Fault("Format specifier missing precision");
      }
      spec.precision = static_cast<int>(number());
    }
    if (position_ < text_.size()) spec.type = take();
    if (position_ < text_.size()) {
      throw Fault("Invalid format specifier '" + std::string(text_) + "'");
    }
    return spec;
  }
  // A 0 before the width, without an alignment: after the sign of numbers.
  bool is_zero_padded() const { return is_zero_padded_; }

 private:
  void read_alignment(Spec& spec) {
    if (text_.empty()) return;
    const size_t length = char_length(text_, 0);
    const auto is_alignment = [&](size_t i) {
      return i < text_.size() && std::string_view("<>=^").find(text_[i]) != std::string_view::npos;
    };
    if (is_alignment(length)) {
      spec.fill = text_.substr(0, length);
      spec.align = text_[length];
      position_ = length + 1;
      has_fill_ = true;
    } else if (is_alignment(0)) {
      spec.align = take();
    }
  }
  bool at(std::string_view set) const {
    return position_ < text_.size() && set.find(text_[position_]) != std::string_view::npos;
  }
  char take() { return text_[position_++]; }
  size_t number() {
    size_t value = 0;
    for (; position_ < text_.size() && is_digit(text_[position_]); ++position_) {
      value = value * 10 + static_cast<size_t>(text_[position_] - '0');
      Budget::check_text(value);
    }
    return value;
  }
  std::string_view text_;
  size_t position_ = 0;
  bool has_fill_ = false, is_zero_padded_ = false;
};

[[noreturn]] void throw_code(const Spec& spec, const Value& value) {
  throw Fault(std::string("Unknown format code '") + spec.type + "' for object of type '" +
              value.type_name() + "'");
}

std::string fill_of(const Spec& spec, size_t count) {
  Budget::check_text(count * spec.fill.size());
  std::string out;
  for (size_t i = 0; i < count; ++i) out += spec.fill;
  return out;
}

std::string aligned(const std::string& text, const Spec& spec, char fallback) {
  const size_t size = count_chars(text);
  if (size >= spec.width) return text;
  const size_t missing = spec.width - size;
  const char align = spec.align == '\0' ? fallback : spec.align;
  const size_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  return fill_of(spec, left) + text + fill_of(spec, missing - left);
}

std::string format_text(const Value& value, const Spec& spec) {
  if (spec.type != '\0' && spec.type != 's') throw_code(spec, value);
  if (spec.has_sign) throw Fault("Sign not allowed in string format specifier");
  if (spec.is_alternate) throw Fault("Alternate form (#) not allowed in string format specifier");
  if (spec.align == '=') throw Fault("'=' alignment not allowed in string format specifier");
  if (spec.grouping != '\0') {
    throw Fault(std::string("Cannot specify '") + spec.grouping + "' with 's'.");
  }
  std::string text = value.text();
  if (spec.precision >= 0) {
    const auto chars = split_chars(text);
    if (chars.size() > static_cast<size_t>(spec.precision)) {
      text.resize(
          static_cast<size_t>(chars[static_cast<size_t>(spec.precision)].data() - chars[0].data()));
    }
  }
  return aligned(text, spec, '<');
}

// "1234567" -> "1,234,567".
std::string grouped(const std::string& digits, char separator, size_t every) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % every == 0) out += separator;
    out += digits[i];
  }
  return out;
}

// A number in parts, so that padding and separators find their places.
struct Parts {
  bool is_negative = false;
  std::string prefix = {};  // 0x
  std::string digits = {};  // before the point
  std::string rest = {};    // the point and what follows
  size_t group_size = 3;
};

std::string assemble(Parts parts, const Spec& spec, bool is_zero_padded) {
  const std::string sign = parts.is_negative  ? "-"
                           : spec.sign == '-' ? ""
                                              : std::string(1, spec.sign);
  const size_t around = sign.size() + parts.prefix.size() + parts.rest.size();
  const bool fills_inside = is_zero_padded || spec.align == '=';
  const auto with_groups = [&](const std::string& digits) {
    return spec.grouping == '\0' ? digits : grouped(digits, spec.grouping, parts.group_size);
  };
  if (fills_inside && spec.fill == "0") {
    // Separators go through the zeros too.
    std::string digits = parts.digits;
    while (around + with_groups(digits).size() < spec.width) digits.insert(0, 1, '0');
    std::string body = with_groups(digits);
    return sign + parts.prefix + body + parts.rest;
  }
  const std::string body = with_groups(parts.digits);
  if (!fills_inside) return aligned(sign + parts.prefix + body + parts.rest, spec, '>');
  const size_t size = around + body.size();
  const std::string fill = size < spec.width ? fill_of(spec, spec.width - size) : "";
  return sign + parts.prefix + fill + body + parts.rest;
}

std::string in_base(uint64_t value, unsigned base, bool is_upper) {
  std::string digits;
  do {
    digits.insert(0, 1, (is_upper ? "0123456789ABCDEF" : "0123456789abcdef")[value % base]);
    value /= base;
  } while (value != 0);
  return digits;
}

std::string format_integer(const Value& value, const Spec& spec, bool is_zero_padded) {
  if (spec.precision >= 0) throw Fault("Precision not allowed in integer format specifier");
  const int64_t number = value.integer();
  if (spec.type == 'c') {
    if (number < 0 || number > 0x10FFFF) throw Fault("%c arg not in range(0x110000)");
    std::string text;
    append_utf8(text, static_cast<char32_t>(number));
    return aligned(text, spec, '>');
  }
  Parts parts{.is_negative = number < 0};
  const uint64_t magnitude =
      number < 0 ? ~static_cast<uint64_t>(number) + 1 : static_cast<uint64_t>(number);
  const char type = spec.type == '\0' || spec.type == 'n' ? 'd' : spec.type;
  const unsigned base = type == 'd' ? 10 : type == 'b' ? 2 : type == 'o' ? 8 : 16;
  if (base != 10 && spec.grouping == ',') {
    throw Fault(std::string("Cannot specify ',' with '") + type + "'.");
  }
  parts.digits = in_base(magnitude, base, type == 'X');
  parts.group_size = base == 10 ? 3 : 4;
  if (base != 10 && spec.is_alternate) parts.prefix = std::string("0") + type;
  return assemble(std::move(parts), spec, is_zero_padded);
}

std::string printed(const char* format, int precision, double number) {
  if (precision > 1000) throw Fault("found a precision beyond 1000");
  const int size = std::snprintf(nullptr, 0, format, precision, number);
  std::string text(static_cast<size_t>(size), '\0');
  std::snprintf(text.data(), text.size() + 1, format, precision, number);
  return text;
}

// Without a type, a number with a precision is written like %g, but shows that it is no integer.
std::string general_with_point(double number, int precision) {
  const int digits = std::max(precision, 1);
  const std::string scientific = printed("%.*e", digits - 1, number);
  const int exponent = std::atoi(scientific.c_str() + scientific.find('e') + 1);
  if (exponent + 1 != digits) {
    std::string text = printed("%.*g", digits, number);
    if (text.find_first_of(".e") == std::string::npos) text += ".0";
    return text;
  }
  // As many digits as asked for stand before the point: an exponent makes room after it.
  std::string mantissa = scientific.substr(0, scientific.find('e'));
  if (mantissa.find('.') != std::string::npos) {
    mantissa.erase(mantissa.find_last_not_of('0') + 1);
    if (mantissa.ends_with('.')) mantissa.pop_back();
  }
  return mantissa + scientific.substr(scientific.find('e'));
}

std::string float_digits(double magnitude, const Spec& spec) {
  if (!std::isfinite(magnitude)) {
    const bool is_upper = spec.type == 'E' || spec.type == 'F' || spec.type == 'G';
    const std::string text = std::isnan(magnitude) ? "nan" : "inf";
    const std::string upper = std::isnan(magnitude) ? "NAN" : "INF";
    return (is_upper ? upper : text) + (spec.type == '%' ? "%" : "");
  }
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  const bool sharp = spec.is_alternate;
  switch (spec.type) {
    case 'e':
      return printed(sharp ? "%#.*e" : "%.*e", precision, magnitude);
    case 'E':
      return printed(sharp ? "%#.*E" : "%.*E", precision, magnitude);
    case 'f':
    case 'F':
      return printed(sharp ? "%#.*f" : "%.*f", precision, magnitude);
    case 'g':
    case 'n':
      return printed(sharp ? "%#.*g" : "%.*g", precision, magnitude);
    case 'G':
      return printed(sharp ? "%#.*G" : "%.*G", precision, magnitude);
    case '%':
      return printed(sharp ? "%#.*f" : "%.*f", precision, magnitude * 100) + "%";
    default:
      return spec.precision < 0 ? python_float_repr(magnitude)
                                : general_with_point(magnitude, precision);
  }
}

std::string format_float(double number, const Spec& spec, bool is_zero_padded) {
  Parts parts{.is_negative = std::signbit(number) && !std::isnan(number)};
  const std::string text = float_digits(std::abs(number), spec);
  const size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
  parts.digits = text.substr(0, end);
  parts.rest = text.substr(end);
  return assemble(std::move(parts), spec, is_zero_padded);
}

}  // namespace

std::string format_value(const Value& value, std::string_view spec_text, Budget& budget) {
  if (spec_text.empty()) return to_text(value, budget);
  budget.spend(static_cast<int64_t>(spec_text.size()));
  if (!value.is_string() && !value.is_number()) {
    throw Fault(std::string("unsupported format string passed to ") + value.type_name() +
                ".__format__");
  }
  SpecReader reader(spec_text);
  const Spec spec = reader.read();
  Budget::check_text(spec.width);
  if (value.is_string()) return format_text(value, spec);
  constexpr std::string_view kFloats = "eEfFgG%";
  constexpr std::string_view kIntegers = "bcdoxX";
  const bool is_float = kFloats.find(spec.type) != std::string_view::npos;
  const bool is_integer = kIntegers.find(spec.type) != std::string_view::npos;
  const bool is_any = spec.type == '\0' || spec.type == 'n';
  if (!is_any && !is_float && !is_integer) throw_code(spec, value);
  if (is_integer && value.is_float()) throw_code(spec, value);
  if (spec.type == 'n' && spec.grouping != '\0') {
    throw Fault(std::string("Cannot specify '") + spec.grouping + "' with 'n'.");
  }
  if (value.is_big() && !is_float) throw Fault("found an integer beyond 64 bits");
  return is_float || value.is_float() ? format_float(value.number(), spec, reader.is_zero_padded())
                                      : format_integer(value, spec, reader.is_zero_padded());
}

}  // namespace strata::text::jinja
