// str.format() and the % operator: texts with places for values.
#include <cmath>

#include <fmt/format.h>

#include "strata/text/jinja/format_spec.h"
#include "strata/text/jinja/interpreter.h"
#include "strata/text/jinja/marked.h"
#include "strata/text/utf8.h"

namespace strata::text::jinja {
namespace {

bool is_number_text(std::string_view text) {
  return !text.empty() && text.size() < 10 &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

bool is_one_of(char c, std::string_view set) { return set.find(c) != std::string_view::npos; }

// repr() with everything beyond ASCII as an escape.
std::string ascii_repr(const Value& value, Budget& budget) {
  std::string out;
  const std::string text = to_repr(value, budget);
  for (size_t i = 0; i < text.size(); i += char_length(text, i)) {
    const char32_t c = decode_char(text, i);
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else {
      out += c < 0x100     ? fmt::format("\\x{:02x}", static_cast<uint32_t>(c))
             : c < 0x10000 ? fmt::format("\\u{:04x}", static_cast<uint32_t>(c))
                           : fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  return out;
}

class FieldFormatter {
 public:
  FieldFormatter(const Arguments& arguments, size_t first, bool is_marked)
      : arguments_(arguments), first_(first), is_marked_(is_marked) {}

  std::string format(std::string_view text, int depth) {
    if (depth > 1) throw Fault("Max string recursion exceeded");
    std::string out;
    for (size_t i = 0; i < text.size();) {
      if (text[i] != '{' && text[i] != '}') {
        const size_t end = std::min(text.find_first_of("{}", i), text.size());
        out.append(text.substr(i, end - i));
        i = end;
        continue;
      }
      if (i + 1 < text.size() && text[i + 1] == text[i]) {
        out += text[i];
        i += 2;
        continue;
      }
      if (text[i] == '}') throw Fault("Single '}' encountered in format string");
      const size_t end = end_of_field(text, i + 1);
      out += format_field(text.substr(i + 1, end - i - 1), depth);
      Budget::check_text(out.size());
      i = end + 1;
    }
    return out;
  }

 private:
  static size_t end_of_field(std::string_view text, size_t begin) {
    int open = 1;
    for (size_t i = begin; i < text.size(); ++i) {
      if (text[i] == '{') ++open;
      if (text[i] == '}' && --open == 0) return i;
    }
    throw Fault(begin == text.size() ? "Single '{' encountered in format string"
                                     : "expected '}' before end of string");
  }

  std::string format_field(std::string_view field, int depth) {
    arguments_.budget.spend();
    size_t end = 0;
    for (bool in_brackets = false; end < field.size(); ++end) {
      if (field[end] == '[') in_brackets = true;
      if (field[end] == ']') in_brackets = false;
      if (field[end] == '{') throw Fault("unexpected '{' in field name");
      if (!in_brackets && (field[end] == ':' || field[end] == '!')) break;
    }
    Value value = find_value(field.substr(0, end));
    std::string_view rest = field.substr(end);
    if (rest.starts_with('!')) {
      if (rest.size() < 2) throw Fault("end of string while looking for conversion specifier");
      if (rest.size() > 2 && rest[2] != ':') throw Fault("expected ':' after conversion specifier");
      value = convert(value, rest[1]);
      rest.remove_prefix(2);
    }
    const std::string spec = rest.empty() ? "" : format(rest.substr(1), depth + 1);
    std::string formatted = format_value(value, spec, arguments_.budget);
    const bool is_whole = value.is_marked() && depth == 0;
    if (is_marked_ && is_whole && !spec.empty()) {
      throw Fault("found the format specifier " + spec +
                  " for what safe or escape gave, expected none");
    }
    if (is_marked_ && !is_whole) refuse_to_escape(formatted);
    return formatted;
  }

  Value convert(const Value& value, char kind) {
    if (kind == 's') return to_text(value, arguments_.budget);
    if (kind == 'r') return to_repr(value, arguments_.budget);
    if (kind == 'a') return ascii_repr(value, arguments_.budget);
    throw Fault(std::string("Unknown conversion specifier '") + kind + "'");
  }

  // "0.name[key]".
  Value find_value(std::string_view name) {
    size_t at = std::min(name.find_first_of(".["), name.size());
    Value value = first_value(name.substr(0, at));
    while (at < name.size()) {
      arguments_.budget.spend();
      if (name[at] == '.') {
        const size_t end = std::min(name.find_first_of(".[", at + 1), name.size());
        if (end == at + 1) throw Fault("Empty attribute in format string");
        value = get_attribute(value, name.substr(at + 1, end - at - 1));
        at = end;
      } else if (name[at] == '[') {
        const size_t end = name.find(']', at);
        if (end == std::string_view::npos) throw Fault("Missing ']' in format string");
        const std::string_view key = name.substr(at + 1, end - at - 1);
        if (key.empty()) throw Fault("Empty attribute in format string");
        value = get_item(value, is_number_text(key)
                                    ? Value(static_cast<int64_t>(std::stoll(std::string(key))))
                                    : Value(key));
        at = end + 1;
      } else {
        throw Fault("Only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  Value first_value(std::string_view name) {
    if (!name.empty() && !is_number_text(name)) {
      for (const auto& [key, value] : arguments_.named) {
        if (key == name) return value;
      }
      throw Fault("found no value for '" + std::string(name) + "'");
    }
    const Numbering numbering = name.empty() ? Numbering::kAutomatic : Numbering::kManual;
    if (numbering_ == Numbering::kNone) numbering_ = numbering;
    if (numbering_ != numbering) {
      throw Fault("cannot switch between automatic and manual field numbering");
    }
    const size_t index = name.empty() ? next_++ : std::stoul(std::string(name));
    if (first_ + index >= arguments_.positional.size()) {
      throw Fault("Replacement index " + std::to_string(index) +
                  " out of range for positional args tuple");
    }
    return arguments_.positional[first_ + index];
  }

  enum class Numbering { kNone, kAutomatic, kManual };
  const Arguments& arguments_;
  const size_t first_;
  const bool is_marked_;
  Numbering numbering_ = Numbering::kNone;
  size_t next_ = 0;
};

class PercentFormatter {
 public:
  PercentFormatter(const Value& pattern, const Value& given, Budget& budget)
      : pattern_(pattern.text()), is_marked_(pattern.is_marked()), given_(given), budget_(budget) {
    if (given.is_list() && given.as_list().is_tuple) {
      values_ = given.as_list().items;
    } else {
      values_ = {given};
    }
  }

  std::string format() {
    std::string out;
    while (at_ < pattern_.size()) {
      const size_t end = std::min(pattern_.find('%', at_), pattern_.size());
      out.append(pattern_.substr(at_, end - at_));
      at_ = end + 1;
      if (end < pattern_.size()) out += conversion();
      Budget::check_text(out.size());
    }
    // A mapping (Python counts lists as such) need not be used up.
    const bool may_be_left = given_.is_dict() || (given_.is_list() && !given_.as_list().is_tuple);
    if (next_ < values_.size() && !may_be_left) {
      throw Fault("not all arguments converted during string formatting");
    }
    return out;
  }

 private:
  // What follows a %: (name), flags, width, precision, kind.
  std::string conversion() {
    budget_.spend();
    const size_t begin = at_;
    const Value* named = name();
    std::string flags;
    while (at_ < pattern_.size() && is_one_of(pattern_[at_], "-+ #0")) {
      flags += pattern_[at_++];
    }
    int64_t width = number("* wants int");
    if (width < 0 && width != kAbsent) flags += '-', width = -width;
    int64_t precision = kAbsent;
    if (at_ < pattern_.size() && pattern_[at_] == '.') {
      ++at_;
      precision = std::max<int64_t>(number("* wants int"), 0);
    }
    while (at_ < pattern_.size() && is_one_of(pattern_[at_], "hlL")) ++at_;
    if (at_ >= pattern_.size()) throw Fault("incomplete format");
    const char kind = pattern_[at_++];
    if (kind == '%' && at_ == begin + 1) return "%";
    const Value& value = named != nullptr ? *named : next_value();
    return convert(value, kind, flags, width == kAbsent ? 0 : width, precision);
  }

  const Value* name() {
    if (at_ >= pattern_.size() || pattern_[at_] != '(') return nullptr;
    if (!given_.is_dict()) throw Fault("format requires a mapping");
    size_t end = at_ + 1;
    for (int open = 1; end < pattern_.size(); ++end) {
      if (pattern_[end] == '(') ++open;
      if (pattern_[end] == ')' && --open == 0) break;
    }
    if (end >= pattern_.size()) throw Fault("incomplete format key");
    const std::string key(pattern_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    const Value* value = given_.as_dict().find(std::string_view(key));
    if (value == nullptr) throw Fault("found no value for '" + key + "'");
    return value;
  }

  int64_t number(const char* why) {
    if (at_ < pattern_.size() && pattern_[at_] == '*') {
      ++at_;
      if (is_marked_) throw Fault(why);  // it is wrapped there, and no int any more
      const Value& value = next_value();
      if (!value.is_integral()) throw Fault(why);
      Budget::check_text(static_cast<size_t>(std::abs(std::max(value.integer(), -INT64_MAX))));
      return value.integer();
    }
    if (at_ >= pattern_.size() || !std::isdigit(static_cast<unsigned char>(pattern_[at_]))) {
      return kAbsent;
    }
    int64_t number = 0;
    for (; at_ < pattern_.size() && std::isdigit(static_cast<unsigned char>(pattern_[at_]));
         ++at_) {
      number = number * 10 + (pattern_[at_] - '0');
      Budget::check_text(static_cast<size_t>(number));
    }
    return number;
  }

  const Value& next_value() {
    if (next_ >= values_.size()) throw Fault("not enough arguments for format string");
    return values_[next_++];
  }

  std::string convert(const Value& value, char kind, const std::string& flags, int64_t width,
                      int64_t precision) {
    if (is_marked_ && is_one_of(kind, "coxX")) {
      throw Fault(std::string("found %") + kind +
                  " in what safe or escape gave, expected %s or %d");
    }
    const auto has = [&](char flag) { return flags.find(flag) != std::string::npos; };
    // The same value in the other language.
    std::string spec = has('-') ? "<" : ">";
    const bool is_text = is_one_of(kind, "sra") || kind == 'c';
    if (!is_text && has('0') && !has('-')) spec = "0=";
    if (!is_text && (has('+') || has(' '))) spec += has('+') ? '+' : ' ';
    if (!is_text && has('#') && !is_one_of(kind, "diu")) spec += '#';
    if (width > 0) spec += std::to_string(width);
    if (is_text) return format_value(text_of(value, kind, precision), spec + "s", budget_);
    if (is_one_of(kind, "eEfFgG")) {
      if (!value.is_number())
        throw Fault("must be real number, not " + std::string(value.type_name()));
      if (precision != kAbsent) spec += "." + std::to_string(precision);
      return format_value(value, spec + kind, budget_);
    }
    if (!is_one_of(kind, "diuoxX")) {
      throw Fault(std::string("unsupported format character '") + kind + "'");
    }
    if (precision != kAbsent) {
      throw Fault(std::string("found a precision for %") + kind + ", expected none; use %f");
    }
    const bool is_decimal = is_one_of(kind, "diu");
    return format_value(integer_of(value, kind, is_decimal), spec + (is_decimal ? 'd' : kind),
                        budget_);
  }

  static Value integer_of(const Value& value, char kind, bool is_decimal) {
    if (value.is_integral()) return value.integer();
    if (value.is_big()) throw Fault("found an integer beyond 64 bits");
    if (!value.is_float() || !is_decimal) {
      throw Fault(std::string("%") + kind +
                  " format: " + (is_decimal ? "a real number" : "an integer") +
                  " is required, not " + value.type_name());
    }
    if (!std::isfinite(value.number()) || std::abs(value.number()) >= 9.2e18) {
      throw Fault("found a number beyond 64 bits");
    }
    return static_cast<int64_t>(value.number());
  }

  Value text_of(const Value& value, char kind, int64_t precision) {
    std::string text;
    if (kind == 'c') {
      text = value.is_string() ? value.text() : format_value(value, "c", budget_);
      if (count_chars(text) != 1) throw Fault("%c requires int or char");
      return text;
    }
    text = kind == 's'   ? to_text(value, budget_)
           : kind == 'r' ? to_repr(value, budget_)
                         : ascii_repr(value, budget_);
    if (is_marked_ && (kind != 's' || !value.is_marked())) refuse_to_escape(text);
    if (precision == kAbsent) return text;
    return format_value(text, "." + std::to_string(precision), budget_);
  }

  static constexpr int64_t kAbsent = INT64_MIN;
  std::string_view pattern_;
  const bool is_marked_;
  const Value& given_;
  Budget& budget_;
  Items values_;
  size_t next_ = 0, at_ = 0;
};

}  // namespace

Value format_fields(const Value& text, const Arguments& arguments, size_t first) {
  FieldFormatter formatter(arguments, first, text.is_marked());
  return marked_as(text, formatter.format(text.text(), 0));
}

Value format_percent(const Value& pattern, const Value& given, Budget& budget) {
  return marked_as(pattern, PercentFormatter(pattern, given, budget).format());
}

}  // namespace strata::text::jinja
