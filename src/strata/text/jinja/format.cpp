// Values as text: str(), repr() and json.dumps() of Python.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "strata/text/jinja/value.h"
#include "strata/text/utf8.h"

namespace strata::text::jinja {

std::string repr_text(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (size_t i = 0; i < text.size();) {
    const char32_t c = decode_char(text, i);
    const size_t length = char_length(text, i);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += {'\\', static_cast<char>(c)};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out.append(text, i, length);
    } else {
      out += c < 0x100     ? fmt::format("\\x{:02x}", static_cast<uint32_t>(c))
             : c < 0x10000 ? fmt::format("\\u{:04x}", static_cast<uint32_t>(c))
                           : fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
    i += length;
  }
  return out += quote;
}

namespace {

class ReprWriter {
 public:
  explicit ReprWriter(Budget& budget) : budget_(budget) {}

  void write(const Value& v, int depth) {
    budget_.spend();
    Budget::check_text(out.size());
    if (depth > Budget::kMaxDepth) throw Fault("a value is nested too deeply to be printed");
    if (v.is_string()) {
      out += repr_text(v.text());
    } else if (v.is_list()) {
      write_list(v.as_list(), depth);
    } else if (v.is_dict()) {
      write_dict(v.as_dict(), depth);
    } else {
      write_scalar(v);
    }
  }

  void write_scalar(const Value& v) {
    if (v.is_none()) {
      out += "None";
    } else if (v.is_bool()) {
      out += v.integer() ? "True" : "False";
    } else if (v.is_int()) {
      out += std::to_string(v.integer());
    } else if (v.is_big()) {
      out += v.big_digits();
    } else if (v.is_float()) {
      out += python_float_repr(v.number());
    } else if (v.is_undefined()) {
      out += "Undefined";
    } else if (v.is_generator()) {
      // Python prints where in memory it is.
      throw Fault(
          "found the result of map, select, reverse or a similar filter printed as a whole, "
          "expected its items; write | list after that filter");
    } else {
      out += std::string("<") + v.type_name() + " " + v.as_callable().name + ">";
    }
  }

  std::string out;

 private:
  void write_list(const List& list, int depth) {
    out += list.is_tuple ? '(' : '[';
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out += ", ";
      write(list.items[i], depth + 1);
    }
    if (list.is_tuple && list.items.size() == 1) out += ',';
    out += list.is_tuple ? ')' : ']';
  }
  void write_dict(const Dict& dict, int depth) {
    if (dict.is_namespace) out += "<Namespace ";
    out += '{';
    for (size_t i = 0; i < dict.entries.size(); ++i) {
      if (i > 0) out += ", ";
      write(dict.entries[i].first, depth + 1);
      out += ": ";
      write(dict.entries[i].second, depth + 1);
    }
    out += '}';
    if (dict.is_namespace) out += '>';
  }
  Budget& budget_;
};

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  void write(const Value& v, int depth) {
    budget_.spend();
    Budget::check_text(out.size());
    if (depth > Budget::kMaxDepth) throw Fault("a value is nested too deeply for tojson");
    if (v.is_none()) {
      out += "null";
    } else if (v.is_bool()) {
      out += v.integer() ? "true" : "false";
    } else if (v.is_int()) {
      out += std::to_string(v.integer());
    } else if (v.is_big()) {
      out += v.big_digits();
    } else if (v.is_float()) {
      write_float(v.number());
    } else if (v.is_string()) {
      out += quote_json(v.text(), style_.ensure_ascii);
    } else if (v.is_list()) {
      const Items& items = v.as_list().items;
      write_all('[', ']', items.size(), depth, [&](size_t i) { write(items[i], depth + 1); });
    } else if (v.is_dict() && !v.as_dict().is_namespace) {
      write_dict(v.as_dict(), depth);
    } else {
      throw Fault(std::string("Object of type ") + v.type_name() + " is not JSON serializable");
    }
  }

  std::string out;

 private:
  void write_float(double d) {
    out += std::isnan(d)   ? "NaN"
           : std::isinf(d) ? (d < 0 ? "-Infinity" : "Infinity")
                           : python_float_repr(d);
  }

  void write_dict(const Dict& dict, int depth) {
    std::vector<std::pair<Value, Value>> entries = dict.entries;
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [&](const auto& a, const auto& b) {
        return compare(a.first, b.first, budget_) < 0;
      });
    }
    write_all('{', '}', entries.size(), depth, [&](size_t i) {
      write_key(entries[i].first);
      out += style_.key_separator;
      write(entries[i].second, depth + 1);
    });
  }

  void write_key(const Value& key) {
    if (key.is_string()) {
      out += quote_json(key.text(), style_.ensure_ascii);
      return;
    }
    out += '"';
    write(key, 0);
    out += '"';
  }

  template <typename WriteItem>
  void write_all(char open, char close, size_t count, int depth, const WriteItem& write_item) {
    out += open;
    for (size_t i = 0; i < count; ++i) {
      if (i > 0) out += style_.item_separator;
      if (style_.has_indent) break_line(depth + 1);
      write_item(i);
    }
    if (style_.has_indent && count > 0) break_line(depth);
    out += close;
  }

  void break_line(int depth) {
    out += '\n';
    for (int i = 0; i < depth; ++i) out += style_.indent;
  }

  const JsonStyle& style_;
  Budget& budget_;
};

}  // namespace

std::string to_repr(const Value& value, Budget& budget) {
  ReprWriter writer(budget);
  writer.write(value, 0);
  return std::move(writer.out);
}

std::string to_text(const Value& value, Budget& budget) {
  if (value.is_string()) return value.text();
  if (value.is_undefined()) return "";
  return to_repr(value, budget);
}

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  writer.write(value, 0);
  return std::move(writer.out);
}

}  // namespace strata::text::jinja
