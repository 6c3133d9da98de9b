// The filters over texts.
#include <algorithm>

#include <fmt/format.h>

#include "strata/text/jinja/filters.h"
#include "strata/text/jinja/format_spec.h"
#include "strata/text/jinja/marked.h"
#include "strata/text/jinja/strings.h"
#include "strata/text/utf8.h"

namespace strata::text::jinja {
namespace {

Value like_subject(Arguments& a, std::string text) {
  return marked_as(subject(a), Value(std::move(text)));
}

Value trim_filter(Arguments& a) {
  const Value* chars = a.find(1, "chars");
  const bool is_space = chars == nullptr || chars->is_none();
  const std::string set = is_space ? "" : a.get_text(1, "chars", "");
  return like_subject(a, strip_text(subject_text(a), is_space ? nullptr : &set, true, true));
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
  const std::vector<std::string> lines = split_lines(text + "\n", /*keep_ends=*/false);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += (blank || !lines[i].empty()) ? "\n" + unit : "\n";
    out += lines[i];
    Budget::check_text(out.size());
  }
  return like_subject(a, std::move(out));
}

Value escape_filter(Arguments& a) { return escape_value(subject(a), a.budget); }

Value force_escape_filter(Arguments& a) { return Value::marked(escaped(subject_text(a))); }

// As Jinja has it, not str.title(): words begin after white space, hyphens and opening brackets.
Value title_filter(Arguments& a) {
  std::string out, word;
  const auto close = [&] { out += capitalize_text(std::exchange(word, "")); };
  const std::string text = subject_text(a);
  for (const std::string_view c : split_chars(text)) {
    const char32_t code = decode_char(c, 0);
    if (is_white_space(code) || (code >= 0x1C && code <= 0x1F) ||
        std::string_view("-({[<").find(c) != std::string_view::npos) {
      close();
      out += c;
    } else {
      word += c;
    }
  }
  close();
  return Value(std::move(out));
}

Value wordcount_filter(Arguments& a) {
  int64_t count = 0;
  bool in_word = false;
  const std::string text = subject_text(a);
  for (const std::string_view c : split_chars(text)) {
    const char32_t code = decode_char(c, 0);
    const bool is_part = code == '_' || is_letter(code) || is_number(code);
    count += is_part && !in_word;
    in_word = is_part;
  }
  return count;
}

Value center_filter(Arguments& a) {
  return like_subject(a, pad_text(subject_text(a), a.get_int(1, "width", 80), " ", /*left=*/true,
                                  /*right=*/true));
}

// "%s of %s" | format(1, 2), or with names.
Value format_filter(Arguments& a) {
  Items given(a.positional.begin() + 1, a.positional.end());
  if (given.empty() || a.named.empty()) {
    Value values = Value::list(std::move(given), /*is_tuple=*/true);
    if (!a.named.empty()) {
      auto names = std::make_shared<Dict>();
      for (const auto& [name, value] : a.named) names->set(name, value);
      values = Value(std::move(names));
    }
    const Value pattern = like_subject(a, subject_text(a));
    return format_percent(pattern, values, a.budget);
  }
  throw Fault("can't handle positional and keyword arguments at the same time");
}

Value truncate_filter(Arguments& a) {
  const int64_t length = a.get_int(1, "length", 255), leeway = a.get_int(4, "leeway", 5);
  const std::string end = a.get_text(3, "end", "...");
  const auto end_size = static_cast<int64_t>(count_chars(end));
  if (length < end_size)
    throw Fault(fmt::format("expected length >= {}, got {}", end_size, length));
  if (leeway < 0) throw Fault(fmt::format("expected leeway >= 0, got {}", leeway));
  const std::string text = subject_text(a);
  const auto chars = split_chars(text);
  if (static_cast<int64_t>(chars.size()) - leeway <= length) return like_subject(a, text);
  if (subject(a).is_marked()) refuse_to_escape(a.get(3, "end", ""));
  std::string kept;
  for (int64_t i = 0; i < length - end_size; ++i) kept += chars[static_cast<size_t>(i)];
  if (!a.get_bool(2, "killwords", false)) kept.resize(std::min(kept.rfind(' '), kept.size()));
  return like_subject(a, kept + end);
}

std::string url_quoted(std::string_view text, bool is_query) {
  std::string out;
  for (const char c : text) {
    const bool is_plain =
        (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
        std::string_view("_.-~").find(c) != std::string_view::npos || (c == '/' && !is_query);
    if (is_plain) {
      out += c;
    } else if (c == ' ' && is_query) {
      out += '+';
    } else {
      out += fmt::format("%{:02X}", static_cast<uint8_t>(c));
    }
  }
  return out;
}

Value urlencode_filter(Arguments& a) {
  const Value& value = subject(a);
  if (!value.is_dict() && !value.is_list()) return url_quoted(subject_text(a), /*is_query=*/false);
  const auto quote = [&](const Value& part) {
    return url_quoted(to_text(part, a.budget), /*is_query=*/true);
  };
  std::string out;
  const auto add = [&](const Value& name, const Value& part) {
    out += (out.empty() ? "" : "&") + quote(name) + "=" + quote(part);
  };
  if (value.is_dict()) {
    for (const auto& [name, part] : value.as_dict().entries) add(name, part);
    return out;
  }
  for (const Value& pair : value.as_list().items) {
    const Items parts = iterate(pair, a.budget);
    if (parts.size() != 2) throw Fault("expected pairs to encode");
    add(parts[0], parts[1]);
  }
  return out;
}

Value xmlattr_filter(Arguments& a) {
  if (!subject(a).is_dict())
    throw Fault("expected a dict, not " + std::string(subject(a).type_name()));
  std::string out;
  for (const auto& [key, value] : subject(a).as_dict().entries) {
    if (value.is_none() || value.is_undefined()) continue;
    const std::string name = to_text(key, a.budget);
    if (name.find_first_of(" \t\n\r\f\v/>=") != std::string::npos) {
      throw Fault("Invalid character in attribute name: " + repr_text(name));
    }
    out += (out.empty() ? "" : " ") + escape_value(key, a.budget).text() + "=\"" +
           escape_value(value, a.budget).text() + "\"";
  }
  return a.get_bool(1, "autospace", true) && !out.empty() ? " " + out : out;
}

}  // namespace

const FilterTable& text_filters() {
  const Function same_text = [](Arguments& a) { return like_subject(a, subject_text(a)); };
  const Function safe = [](Arguments& a) { return Value::marked(subject_text(a)); };
  static const FilterTable table = {
      {"capitalize",
       [](Arguments& a) { return like_subject(a, capitalize_text(subject_text(a))); }},
      {"center", center_filter},
      {"e", escape_filter},
      {"escape", escape_filter},
      {"forceescape", force_escape_filter},
      {"format", format_filter},
      {"indent", indent_filter},
      {"lower", [](Arguments& a) { return like_subject(a, lower_text(subject_text(a))); }},
      {"replace", replace_filter},
      {"safe", safe},
      {"string", same_text},
      {"title", title_filter},
      {"trim", trim_filter},
      {"truncate", truncate_filter},
      {"upper", [](Arguments& a) { return like_subject(a, upper_text(subject_text(a))); }},
      {"urlencode", urlencode_filter},
      {"wordcount", wordcount_filter},
      {"xmlattr", xmlattr_filter},
  };
  return table;
}

}  // namespace strata::text::jinja
