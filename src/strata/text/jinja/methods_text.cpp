// Methods of str.
#include <algorithm>
#include <optional>

#include "strata/text/jinja/format_spec.h"
#include "strata/text/jinja/marked.h"
#include "strata/text/jinja/methods.h"
#include "strata/text/jinja/strings.h"
#include "strata/text/utf8.h"

namespace strata::text::jinja {
namespace {

const std::string& self_text(Arguments& a) { return a.positional[0].text(); }

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

// The part of the text that the arguments `start` and `end` name, and where it begins (in bytes);
// nothing where `start` lies after `end`.
struct Part {
  std::string_view text;
  size_t begin;
};
std::optional<Part> part_of(Arguments& a) {
  const std::string_view text = self_text(a);
  if (a.find(2, "start") == nullptr && a.find(3, "end") == nullptr) return Part{text, 0};
  const auto chars = split_chars(text);
  const auto size = static_cast<int64_t>(chars.size());
  const auto place = [&](int64_t at) { return at < 0 ? std::max<int64_t>(at + size, 0) : at; };
  const int64_t begin = place(a.get_int(2, "start", 0));
  const int64_t end = std::min(place(a.get_int(3, "end", size)), size);
  if (begin > size || end < begin) return std::nullopt;
  const auto byte_of = [&](int64_t at) {
    return at == size ? text.size()
                      : static_cast<size_t>(chars[static_cast<size_t>(at)].data() - text.data());
  };
  return Part{text.substr(byte_of(begin), byte_of(end) - byte_of(begin)), byte_of(begin)};
}

// startswith and endswith take one text or a tuple of them.
template <typename Check>
Value affix_method(Arguments& a, Check check) {
  const Value& affix = a.require(1, "prefix");
  const bool is_tuple = affix.is_list() && affix.as_list().is_tuple;
  const Items candidates = is_tuple ? affix.as_list().items : Items{affix};
  const std::optional<Part> part = part_of(a);
  for (const Value& candidate : candidates) {
    if (!candidate.is_string()) {
      throw Fault(std::string("expected a str or a tuple of str, not ") + candidate.type_name());
    }
    if (part && check(part->text, std::string_view(candidate.text()))) return true;
  }
  return false;
}

Value find_text(Arguments& a, bool from_right, bool must_exist) {
  const std::string sub =
      a.require(1, "sub").is_string()
          ? a.get_text(1, "sub", "")
          : throw Fault("must be str, not " + std::string(a.require(1, "sub").type_name()));
  const std::optional<Part> part = part_of(a);
  const size_t at = !part        ? std::string::npos
                    : from_right ? part->text.rfind(sub)
                                 : part->text.find(sub);
  if (at == std::string::npos) {
    if (must_exist) throw Fault("substring not found");
    return -1;
  }
  return count_chars(std::string_view(self_text(a)).substr(0, part->begin + at));
}

Value count_method(Arguments& a) {
  const std::string sub = a.require(1, "sub").text();
  const std::optional<Part> part = part_of(a);
  if (!part) return 0;
  if (sub.empty()) return count_chars(part->text) + 1;
  return split_text(part->text, sub, /*limit=*/-1, /*from_right=*/false).size() - 1;
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

Value pad_method(Arguments& a, bool left, bool right) {
  if (a.positional[0].is_marked()) refuse_to_escape(a.get(2, "fillchar", " "));
  return pad_text(self_text(a), a.get_int(1, "width", 0), a.get_text(2, "fillchar", " "), left,
                  right);
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
    if (a.positional[0].is_marked()) refuse_to_escape(item);
    if (!std::exchange(is_first, false)) out += self_text(a);
    out += item.text();
    Budget::check_text(out.size());
  }
  return Value(std::move(out));
}

Value replace_method(Arguments& a) {
  if (a.positional[0].is_marked()) refuse_to_escape(a.get(2, "new", ""));
  return replace_text(self_text(a), a.require(1, "old").is_string() ? a.get_text(1, "old", "") : "",
                      a.get_text(2, "new", ""), a.get_int(3, "count", -1));
}

Value test_method(Arguments& a, std::string_view name) {
  Arguments inner{{a.positional[0]}, {}, a.budget};
  return find_test(name)(inner);
}

// Numbers, and the ideographs that stand for one.
bool is_numeric(char32_t c) {
  constexpr std::u32string_view kIdeographs =
      U"㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹幺廾廿弌弍弎弐拾捌柒"
      U"漆玖百肆萬貮貳贰阡陆陌陸零\uF96B\uF973\uF978\uF9B2\uF9D1\uF9D3\uF9FD\U00020001\U00020064"
      U"\U000200E2\U00020121\U0002092A\U00020983\U0002098C\U0002099C\U00020AEA\U00020AFD"
      U"\U00020B19\U00022390\U00022998\U00023B1B\U0002626D\U0002F890";
  return is_number(c) || kIdeographs.find(c) != std::u32string_view::npos;
}

Value zfill_method(Arguments& a) {
  const std::string& text = self_text(a);
  const bool is_signed = text.starts_with('+') || text.starts_with('-');
  const int64_t width = a.get_int(1, "width", 0) - (is_signed ? 1 : 0);
  return text.substr(0, is_signed) +
         pad_text(text.substr(is_signed), width, "0", /*left=*/true, /*right=*/false);
}

Value expandtabs_method(Arguments& a) {
  const int64_t size = a.get_int(1, "tabsize", 8);
  std::string out;
  int64_t column = 0;
  for (const std::string_view c : split_chars(self_text(a))) {
    if (c == "\t") {
      const int64_t spaces = size > 0 ? size - column % size : 0;
      Budget::check_text(out.size() + static_cast<size_t>(spaces));
      out.append(static_cast<size_t>(spaces), ' ');
      column += spaces;
    } else {
      out += c;
      column = c == "\n" || c == "\r" ? 0 : column + 1;
    }
  }
  return Value(std::move(out));
}

Value format_map_method(Arguments& a) {
  const Value& names = a.require(1, "mapping");
  if (!names.is_dict()) throw Fault("expected a dict, not " + std::string(names.type_name()));
  Arguments all{{}, {}, a.budget};
  for (const auto& [key, value] : names.as_dict().entries) {
    if (key.is_string()) all.named.emplace_back(key.text(), value);
  }
  return format_fields(a.positional[0], all, 0);
}

// A title has a capital at the start of each word and no other.
Value istitle_method(Arguments& a) {
  bool has_word = false, in_word = false;
  for (const std::string_view c : split_chars(self_text(a))) {
    const char32_t code = decode_char(c, 0);
    const bool is_capital = is_upper(code) || is_title(code);
    if (is_capital ? in_word : is_lower(code) && !in_word) return false;
    in_word = is_capital || is_lower(code);
    has_word |= in_word;
  }
  return has_word;
}

Value isidentifier_method(Arguments& a) {
  const auto chars = split_chars(self_text(a));
  for (size_t i = 0; i < chars.size(); ++i) {
    const char32_t c = decode_char(chars[i], 0);
    if (c != '_' && !is_letter(c) && (i == 0 || !is_word(c))) return false;
  }
  return !chars.empty();
}

[[noreturn]] Value refuse_method(Arguments&) {
  throw Fault("this method of Python's str is not supported here");
}

}  // namespace

const MethodTable& text_methods() {
  static const MethodTable table = {
      {"split", [](Arguments& a) { return split_method(a, /*from_right=*/false); }},
      {"rsplit", [](Arguments& a) { return split_method(a, /*from_right=*/true); }},
      {"splitlines",
       [](Arguments& a) {
         return texts(split_lines(self_text(a), a.get_bool(1, "keepends", false)));
       }},
      {"strip", [](Arguments& a) { return strip_method(a, /*left=*/true, /*right=*/true); }},
      {"lstrip", [](Arguments& a) { return strip_method(a, /*left=*/true, /*right=*/false); }},
      {"rstrip", [](Arguments& a) { return strip_method(a, /*left=*/false, /*right=*/true); }},
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
      {"find",
       [](Arguments& a) { return find_text(a, /*from_right=*/false, /*must_exist=*/false); }},
      {"rfind",
       [](Arguments& a) { return find_text(a, /*from_right=*/true, /*must_exist=*/false); }},
      {"index",
       [](Arguments& a) { return find_text(a, /*from_right=*/false, /*must_exist=*/true); }},
      {"rindex",
       [](Arguments& a) { return find_text(a, /*from_right=*/true, /*must_exist=*/true); }},
      {"count", count_method},
      {"join", join_method},
      {"partition", [](Arguments& a) { return partition_method(a, /*from_right=*/false); }},
      {"rpartition", [](Arguments& a) { return partition_method(a, /*from_right=*/true); }},
      {"center", [](Arguments& a) { return pad_method(a, /*left=*/true, /*right=*/true); }},
      {"ljust", [](Arguments& a) { return pad_method(a, /*left=*/false, /*right=*/true); }},
      {"rjust", [](Arguments& a) { return pad_method(a, /*left=*/true, /*right=*/false); }},
      {"casefold", [](Arguments& a) -> Value { return fold_case(self_text(a)); }},
      {"swapcase", [](Arguments& a) -> Value { return swapcase_text(self_text(a)); }},
      {"zfill", zfill_method},
      {"expandtabs", expandtabs_method},
      {"format", [](Arguments& a) { return format_fields(a.positional[0], a, 1); }},
      {"format_map", format_map_method},
      {"encode", refuse_method},
      {"maketrans", refuse_method},
      {"translate", refuse_method},
      {"isascii", [](Arguments& a) -> Value { return is_ascii(self_text(a)); }},
      {"isidentifier", isidentifier_method},
      {"isprintable",
       [](Arguments& a) -> Value {
         const auto chars = split_chars(self_text(a));
         return std::ranges::all_of(
             chars, [](std::string_view c) { return is_printable(decode_char(c, 0)); });
       }},
      {"istitle", istitle_method},
      {"isdecimal",
       [](Arguments& a) { return all_chars(a, [](char32_t c) { return is_decimal(c); }); }},
      {"isnumeric",
       [](Arguments& a) { return all_chars(a, [](char32_t c) { return is_numeric(c); }); }},
      {"isdigit",
       [](Arguments& a) { return all_chars(a, [](char32_t c) { return is_digit(c); }); }},
      {"isalpha",
       [](Arguments& a) { return all_chars(a, [](char32_t c) { return is_letter(c); }); }},
      {"isalnum",
       [](Arguments& a) {
         return all_chars(a, [](char32_t c) { return is_letter(c) || is_numeric(c); });
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

}  // namespace strata::text::jinja
