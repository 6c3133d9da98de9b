// dump_python: the text that Python's json.dumps writes.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "strata/base/error.h"
#include "strata/base/exact_json.h"
#include "strata/base/json.h"

namespace strata {
namespace {

// Decodes the valid UTF-8 sequence at `i` and moves `i` past it.
uint32_t next_code_point(std::string_view text, size_t& i) {
  const auto first = static_cast<unsigned char>(text[i++]);
  const int tails = first < 0x80 ? 0 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
  uint32_t code = tails == 0 ? first : first & (0x3fu >> tails);
  for (int k = 0; k < tails && i < text.size(); ++k) {
    code = (code << 6) | (static_cast<unsigned char>(text[i++]) & 0x3fu);
  }
  return code;
}

void append_escape(std::string& out, uint32_t unit) { out += fmt::format("\\u{:04x}", unit); }

void append_quoted(std::string& out, std::string_view text, bool ensure_ascii) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x7f && ensure_ascii) {
      const uint32_t code = next_code_point(text, i);
      if (code < 0x10000) {
        append_escape(out, code);
      } else {
        append_escape(out, 0xd800 + ((code - 0x10000) >> 10));
        append_escape(out, 0xdc00 + ((code - 0x10000) & 0x3ff));
      }
      continue;
    }
    ++i;
    switch (byte) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (byte < 0x20) {
          append_escape(out, byte);
        } else {
          out += static_cast<char>(byte);
        }
    }
  }
  out += '"';
}

class Writer {
 public:
  Writer(int indent, bool sort_keys, bool ensure_ascii)
      : indent_(indent), sort_keys_(sort_keys), ensure_ascii_(ensure_ascii) {}

  void write(const Json& value, int depth) {
    switch (value.type()) {
      case Json::value_t::object:
        write_object(value, depth);
        break;
      case Json::value_t::array:
        write_array(value, depth);
        break;
      case Json::value_t::string:
        append_quoted(out_, value.get_ref<const std::string&>(), ensure_ascii_);
        break;
      case Json::value_t::boolean:
        out_ += value.get<bool>() ? "true" : "false";
        break;
      case Json::value_t::number_integer:
        out_ += std::to_string(value.get<int64_t>());
        break;
      case Json::value_t::number_unsigned:
        out_ += std::to_string(value.get<uint64_t>());
        break;
      case Json::value_t::number_float:
        write_float(value.get<double>());
        break;
      case Json::value_t::null:
        out_ += "null";
        break;
      default:
        if (const auto digits = big_integer(value)) {
          out_ += *digits;
          break;
        }
        throw InternalError("dump_python: found binary data, expected a json value");
    }
  }

  std::string take() { return std::move(out_); }

 private:
  void write_float(double value) {
    if (std::isnan(value)) {
      out_ += "NaN";
    } else if (std::isinf(value)) {
      out_ += value > 0 ? "Infinity" : "-Infinity";
    } else {
      out_ += python_float_repr(value);
    }
  }

  // Python joins items by ", " on one line, but by "," when an indent starts a new line anyway.
  void separate(int depth, bool is_first) {
    if (!is_first) out_ += indent_ < 0 ? ", " : ",";
    break_line(depth);
  }

  void break_line(int depth) {
    if (indent_ < 0) return;
    out_ += '\n';
    out_.append(static_cast<size_t>(depth) * static_cast<size_t>(indent_), ' ');
  }

  void write_array(const Json& value, int depth) {
    out_ += '[';
    bool is_first = true;
    for (const Json& item : value) {
      separate(depth + 1, std::exchange(is_first, false));
      write(item, depth + 1);
    }
    if (!is_first) break_line(depth);
    out_ += ']';
  }

  void write_object(const Json& value, int depth) {
    std::vector<const Json::object_t::value_type*> items;
    for (const auto& item : value.get_ref<const Json::object_t&>()) items.push_back(&item);
    if (sort_keys_) {  // the order of UTF-8 bytes is that of code points, Python's
      std::sort(items.begin(), items.end(),
                [](const auto* a, const auto* b) { return a->first < b->first; });
    }
    out_ += '{';
    bool is_first = true;
    for (const auto* item : items) {
      separate(depth + 1, std::exchange(is_first, false));
      append_quoted(out_, item->first, ensure_ascii_);
      out_ += ": ";
      write(item->second, depth + 1);
    }
    if (!is_first) break_line(depth);
    out_ += '}';
  }

  int indent_;
  bool sort_keys_;
  bool ensure_ascii_;
  std::string out_;
};

}  // namespace

std::string python_float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(end.ptr - buffer));
  const size_t e = text.find('e');
  const std::string sign = text[0] == '-' ? "-" : "";
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  const int exponent = std::stoi(std::string(text.substr(e + 1)));
  if (exponent < -4 || exponent >= 16) {
    if (digits.size() > 1) digits.insert(1, 1, '.');
    return fmt::format("{}{}e{}{:02}", sign, digits, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  const std::string fraction = digits.size() > whole ? digits.substr(whole) : "0";
  return sign + digits.substr(0, whole) + "." + fraction;
}

std::string quote_json(std::string_view text, bool ensure_ascii) {
  std::string out;
  append_quoted(out, text, ensure_ascii);
  return out;
}

std::string dump_python(const Json& value, int indent, bool sort_keys, bool ensure_ascii) {
  Writer writer(indent, sort_keys, ensure_ascii);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace strata
