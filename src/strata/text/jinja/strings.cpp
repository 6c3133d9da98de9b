// Case, stripping, splitting and replacing.
#include "strata/text/jinja/strings.h"

#include <algorithm>

#include "strata/text/jinja/value.h"
#include "strata/text/utf8.h"

namespace strata::text::jinja {
namespace {

bool is_python_space(char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

void append_upper(std::string& out, char32_t c) {
  if (c == 0xDF) {
    out += "SS";
  } else {
    append_utf8(out, to_upper(c));
  }
}

void append_title(std::string& out, char32_t c) {
  if (c == 0xDF) {
    out += "Ss";
  } else {
    append_utf8(out, to_title(c));
  }
}

}  // namespace

std::string upper_text(std::string_view text) {
  std::string out;
  for (const std::string_view c : split_chars(text)) append_upper(out, decode_char(c, 0));
  return out;
}

std::string lower_text(std::string_view text) {
  std::string out;
  const auto chars = split_chars(text);
  const auto is_cased = [&](size_t i) { return is_letter(decode_char(chars[i], 0)); };
  for (size_t i = 0; i < chars.size(); ++i) {
    const char32_t c = decode_char(chars[i], 0);
    if (c == 0x3A3 && i > 0 && is_cased(i - 1) && (i + 1 == chars.size() || !is_cased(i + 1))) {
      append_utf8(out, 0x3C2);  // final sigma
    } else if (c == 0x130) {
      out += "i\xCC\x87";
    } else {
      append_utf8(out, to_lower(c));
    }
  }
  return out;
}

std::string title_text(std::string_view text) {
  std::string out;
  bool is_word_start = true;
  for (const std::string_view c : split_chars(text)) {
    const char32_t code = decode_char(c, 0);
    const bool is_cased = is_upper(code) || is_lower(code) || is_title(code);
    if (is_cased && is_word_start) {
      append_title(out, code);
    } else {
      append_utf8(out, to_lower(code));
    }
    is_word_start = !is_cased;
  }
  return out;
}

std::string capitalize_text(std::string_view text) {
  if (text.empty()) return "";
  std::string out;
  append_title(out, decode_char(text, 0));
  return out += lower_text(text.substr(char_length(text, 0)));
}

std::string fold_case(std::string_view text) {
  std::string out;
  for (const std::string_view c : split_chars(text)) append_folded(out, decode_char(c, 0));
  return out;
}

std::string swapcase_text(std::string_view text) {
  std::string out;
  for (const std::string_view c : split_chars(text)) {
    const char32_t code = decode_char(c, 0);
    if (is_upper(code)) {
      out += lower_text(c);
    } else if (is_lower(code)) {
      append_upper(out, code);
    } else {
      out += c;
    }
  }
  return out;
}

std::string pad_text(std::string_view text, int64_t width, std::string_view fill, bool left,
                     bool right) {
  if (count_chars(fill) != 1) throw Fault("the fill character must be exactly one character long");
  const auto size = static_cast<int64_t>(count_chars(text));
  if (width <= size) return std::string(text);
  Budget::check_text(static_cast<size_t>(width));
  Budget::check_text(static_cast<size_t>(width) * fill.size());
  const int64_t missing = width - size;
  // str.center puts the odd character to the left when the width is odd.
  const int64_t before = left && right ? missing / 2 + (missing & width & 1) : left ? missing : 0;
  std::string out;
  for (int64_t i = 0; i < before; ++i) out += fill;
  out += text;
  for (int64_t i = before; i < missing; ++i) out += fill;
  return out;
}

std::string strip_text(std::string_view text, const std::string* chars, bool left, bool right) {
  const auto strips = [&](size_t at) {
    if (chars == nullptr) return is_python_space(decode_char(text, at));
    const auto set = split_chars(*chars);
    return std::find(set.begin(), set.end(), text.substr(at, char_length(text, at))) != set.end();
  };
  size_t begin = 0, end = text.size();
  while (left && begin < end && strips(begin)) begin += char_length(text, begin);
  while (right && end > begin && strips(previous_char(text, end))) end = previous_char(text, end);
  return std::string(text.substr(begin, end - begin));
}

std::vector<std::string> split_whitespace(std::string_view text, int64_t limit, bool from_right) {
  std::vector<std::string> parts;
  std::string rest = strip_text(text, nullptr, !from_right, from_right);
  while (!rest.empty()) {
    // The first (or last) white space run of the rest.
    size_t begin = std::string::npos;
    for (size_t i = 0; i < rest.size(); i += char_length(rest, i)) {
      if (!is_python_space(decode_char(rest, i))) continue;
      begin = i;
      if (!from_right) break;
    }
    if (begin == std::string::npos || (limit >= 0 && static_cast<int64_t>(parts.size()) >= limit)) {
      parts.push_back(rest);
      break;
    }
    const size_t after = begin + char_length(rest, begin);
    if (from_right) {
      parts.push_back(rest.substr(after));
      rest = strip_text(std::string_view(rest).substr(0, begin), nullptr, false, true);
    } else {
      parts.push_back(rest.substr(0, begin));
      rest = strip_text(std::string_view(rest).substr(after), nullptr, true, false);
    }
    Budget::check_items(parts.size());
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> split_text(std::string_view text, std::string_view separator,
                                    int64_t limit, bool from_right) {
  std::vector<std::string> parts;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = from_right ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    if (from_right) {
      parts.emplace_back(text.substr(at + separator.size()));
      text = text.substr(0, at);
    } else {
      parts.emplace_back(text.substr(0, at));
      text = text.substr(at + separator.size());
    }
    Budget::check_items(parts.size());
  }
  parts.emplace_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = decode_char(text, i);
    const size_t length = char_length(text, i);
    const bool is_break = (c >= 0xA && c <= 0xD) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                          c == 0x2028 || c == 0x2029;
    size_t next = i + length;
    if (is_break) {
      if (c == '\r' && next < text.size() && text[next] == '\n') ++next;
      lines.emplace_back(text.substr(begin, (keep_ends ? next : i) - begin));
      begin = next;
    }
    i = next;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

std::string replace_text(std::string_view text, std::string_view old_text,
                         std::string_view new_text, int64_t limit) {
  std::string out;
  int64_t replaced = 0;
  size_t at = 0;
  const auto may_replace = [&] { return limit < 0 || replaced < limit; };
  if (old_text.empty()) {  // Python puts the new text between all characters
    for (const std::string_view c : split_chars(text)) {
      if (may_replace()) out += new_text, ++replaced;
      out += c;
      Budget::check_text(out.size());
    }
    if (may_replace()) out += new_text;
    return out;
  }
  while (may_replace()) {
    const size_t found = text.find(old_text, at);
    if (found == std::string_view::npos) break;
    out.append(text, at, found - at).append(new_text);
    Budget::check_text(out.size());
    at = found + old_text.size();
    ++replaced;
  }
  return out.append(text, at);
}

}  // namespace strata::text::jinja
