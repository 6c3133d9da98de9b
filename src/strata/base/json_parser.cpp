// parse_json: a recursive descent over the text that builds the document directly.
// Not nlohmann's parser: that one searches an object linearly for every key it adds (a vocabulary
// of 128,000 tokens takes minutes), and gives no column.
#include <bit>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "strata/base/error.h"
#include "strata/base/exact_json.h"
#include "strata/base/file.h"
#include "strata/base/json.h"
#include "strata/base/utf8_length.h"

namespace strata {
namespace {

// Objects with more keys than this find repeated keys by hash instead of by looking through all.
constexpr size_t kLinearKeys = 16;

// Marks binary data, of which no JSON text has any, as digits.
constexpr Json::binary_t::subtype_type kBigInteger = 10;

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3f));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& subject, const JsonOptions& options,
         bool is_exact)
      : text_(text), subject_(subject), options_(options), is_exact_(is_exact) {
    if (text_.starts_with("\xef\xbb\xbf")) start_ = at_ = 3;
  }

  Json document() {
    Json result = value(0);
    skip_space();
    if (at_ != text_.size()) fail("the end of the document");
    return result;
  }

 private:
  [[noreturn]] void fail_at(size_t position, const std::string& found, std::string_view expected) {
    size_t line = options_.first_line, column = 1;
    for (size_t i = start_; i < position; ++i) {
      if (text_[i] == '\n') {
        ++line;
        column = 1;
      } else if ((static_cast<unsigned char>(text_[i]) & 0xc0) != 0x80) {
        ++column;
      }
    }
    throw FormatError("{}:{}:{}: found {}, expected {}; {}", subject_, line, column, found,
                      expected, advice_at(position));
  }

  // What people write who are used to other forms of JSON.
  std::string_view advice_at(size_t position) const {
    const std::string_view rest = text_.substr(position);
    if (rest.starts_with("//") || rest.starts_with("/*") || rest.starts_with('#')) {
      return "JSON has no comments: remove it";
    }
    const std::string_view before = text_.substr(0, position);
    const size_t last = before.find_last_not_of(" \t\r\n");
    const bool follows_comma = last != before.npos && before[last] == ',';
    if (follows_comma && (rest.starts_with('}') || rest.starts_with(']'))) {
      return "JSON has no comma after the last entry: remove it";
    }
    return subject_.starts_with("--") ? "write JSON, between single quotes for the shell"
                                      : "correct the file";
  }

  [[noreturn]] void fail(std::string_view expected) { fail_at(at_, here(), expected); }

  // What stands at the position, for a message.
  std::string here() const {
    if (at_ >= text_.size()) return "the end of the text";
    const size_t length = utf8_length(text_.substr(at_));
    const auto byte = static_cast<unsigned char>(text_[at_]);
    if (length == 0) return fmt::format("the byte 0x{:02x}, which is no valid utf-8", byte);
    if (byte == '\n') return "the end of the line";
    if (byte < 0x20 || byte == 0x7f) return fmt::format("the control character 0x{:02x}", byte);
    return fmt::format("'{}'", text_.substr(at_, length));
  }

  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
      ++at_;
    }
  }

  bool next_is(char c) const { return at_ < text_.size() && text_[at_] == c; }

  bool consume(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  Json value(size_t depth) {
    if (depth > options_.max_depth) {
      fail_at(at_, fmt::format("more than {} nested levels", options_.max_depth), "fewer");
    }
    skip_space();
    if (next_is('{')) return object(depth);
    if (next_is('[')) return array(depth);
    if (next_is('"')) return Json(string());
    if (consume("true")) return Json(true);
    if (consume("false")) return Json(false);
    if (consume("null")) return Json(nullptr);
    if (consume("NaN")) return Json(std::numeric_limits<double>::quiet_NaN());
    if (consume("Infinity")) return Json(std::numeric_limits<double>::infinity());
    if (consume("-Infinity")) return Json(-std::numeric_limits<double>::infinity());
    if (at_ < text_.size() && (text_[at_] == '-' || is_digit(at_))) return number();
    fail("a value");
  }

  Json array(size_t depth) {
    Json result = Json::array();
    auto& items = result.get_ref<Json::array_t&>();
    ++at_;
    skip_space();
    if (consume("]")) return result;
    while (true) {
      items.push_back(value(depth + 1));
      skip_space();
      if (consume("]")) return result;
      if (!consume(",")) fail("',' or ']'");
    }
  }

  Json object(size_t depth) {
    Json result = Json::object();
    // The vector below nlohmann's ordered map: appending there skips its search for the key.
    auto& items = result.get_ref<Json::object_t&>();
    std::unordered_map<std::string, size_t> places;
    ++at_;
    skip_space();
    if (consume("}")) return result;
    while (true) {
      skip_space();
      const size_t key_position = at_;
      if (!next_is('"')) fail("a key in double quotes");
      std::string key = string();
      skip_space();
      if (!consume(":")) fail("':' after the key");
      Json item = value(depth + 1);
      const size_t place = place_of(items, places, key);
      if (place == items.size()) {
        items.Json::object_t::Container::emplace_back(std::move(key), std::move(item));
      } else if (options_.duplicates == DuplicateKeys::kReject) {
        fail_at(key_position, "the key \"" + key + "\" again", "every key once");
      } else {
        (items.begin() + static_cast<std::ptrdiff_t>(place))->second = std::move(item);
      }
      skip_space();
      if (consume("}")) return result;
      if (!consume(",")) fail("',' or '}'");
    }
  }

  // Index of `key` in `items`, or items.size(). Keeps `places` in step once the object is large.
  static size_t place_of(const Json::object_t& items,
                         std::unordered_map<std::string, size_t>& places, const std::string& key) {
    if (items.size() < kLinearKeys) {
      for (size_t i = 0; i < items.size(); ++i) {
        if ((items.begin() + static_cast<std::ptrdiff_t>(i))->first == key) return i;
      }
      return items.size();
    }
    if (places.empty()) {
      for (size_t i = 0; i < items.size(); ++i) {
        places.emplace((items.begin() + static_cast<std::ptrdiff_t>(i))->first, i);
      }
    }
    return places.emplace(key, items.size()).first->second;
  }

  // Over characters that are ASCII and stand for themselves, eight at a time.
  void skip_plain_words() {
    constexpr uint64_t kOnes = 0x0101010101010101, kHighBits = 0x80 * kOnes;
    const auto has_less = [](uint64_t word, uint64_t than) {
      return (word - than * kOnes) & ~word;
    };
    for (uint64_t word = 0; at_ + sizeof word <= text_.size(); at_ += sizeof word) {
      std::memcpy(&word, text_.data() + at_, sizeof word);
      const uint64_t others = (word | has_less(word, 0x20) | has_less(word ^ ('"' * kOnes), 1) |
                               has_less(word ^ ('\\' * kOnes), 1)) &
                              kHighBits;
      if (others == 0) continue;
      // A borrow marks bytes after the first other one only.
      at_ += static_cast<size_t>(std::countr_zero(others)) / 8;
      return;
    }
  }

  // To the end of the string, or the escape or what is no part of a string before it.
  void skip_plain() {
    while (at_ < text_.size()) {
      skip_plain_words();
      if (at_ == text_.size()) return;
      const char c = text_[at_];
      if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20) return;
      const size_t length = utf8_length(text_.substr(at_));
      if (length == 0) fail("utf-8 text");
      at_ += length;
    }
  }

  std::string string() {
    std::string result;
    ++at_;
    while (true) {
      const size_t begin = at_;
      skip_plain();
      result.append(text_, begin, at_ - begin);
      if (consume("\"")) return result;
      if (!next_is('\\')) fail("'\"' at the end of the string");
      escape(result);
    }
  }

  void escape(std::string& out) {
    ++at_;
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    switch (c) {
      case '"':
      case '\\':
      case '/':
        out += c;
        break;
      case 'b':
        out += '\b';
        break;
      case 'f':
        out += '\f';
        break;
      case 'n':
        out += '\n';
        break;
      case 'r':
        out += '\r';
        break;
      case 't':
        out += '\t';
        break;
      case 'u':
        ++at_;
        unicode_escape(out);
        return;
      default:
        fail("one of \"\\/bfnrtu after '\\'");
    }
    ++at_;
  }

  void unicode_escape(std::string& out) {
    const size_t begin = at_ - 2;
    uint32_t code = four_hex_digits();
    if (code >= 0xd800 && code <= 0xdbff && consume("\\u")) {
      const uint32_t low = four_hex_digits();
      if (low < 0xdc00 || low > 0xdfff) {
        fail_at(begin, "an unpaired surrogate", "a pair \\uD8xx\\uDCxx");
      }
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xd800 && code <= 0xdfff) {
      fail_at(begin, "an unpaired surrogate", "a pair \\uD8xx\\uDCxx");
    }
    append_utf8(out, code);
  }

  uint32_t four_hex_digits() {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = at_ < text_.size() ? text_[at_] : '\0';
      uint32_t digit = 0;
      if (c >= '0' && c <= '9')
        digit = static_cast<uint32_t>(c - '0');
      else if (c >= 'a' && c <= 'f')
        digit = static_cast<uint32_t>(c - 'a' + 10);
      else if (c >= 'A' && c <= 'F')
        digit = static_cast<uint32_t>(c - 'A' + 10);
      else
        fail("four hexadecimal digits after '\\u'");
      code = code * 16 + digit;
    }
    return code;
  }

  bool is_digit(size_t i) const { return i < text_.size() && text_[i] >= '0' && text_[i] <= '9'; }

  void skip_digits() {
    if (!is_digit(at_)) fail("a digit");
    while (is_digit(at_)) ++at_;
  }

  Json number() {
    const size_t begin = at_;
    const bool is_negative = consume("-");
    if (next_is('0')) {
      ++at_;
      if (is_digit(at_)) fail("no digit after a leading zero");
    } else {
      skip_digits();
    }
    bool is_integer = true;
    if (consume(".")) {
      is_integer = false;
      skip_digits();
    }
    if (next_is('e') || next_is('E')) {
      is_integer = false;
      ++at_;
      if (next_is('+') || next_is('-')) ++at_;
      skip_digits();
    }
    const std::string_view digits = text_.substr(begin, at_ - begin);
    return is_integer ? integer(digits, is_negative) : Json(floating(digits));
  }

  Json integer(std::string_view digits, bool is_negative) {
    const char* end = digits.data() + digits.size();
    if (is_negative) {
      int64_t value = 0;
      if (std::from_chars(digits.data(), end, value).ec == std::errc()) return Json(value);
    } else {
      uint64_t value = 0;
      if (std::from_chars(digits.data(), end, value).ec == std::errc()) return Json(value);
    }
    return is_exact_ ? big(digits) : Json(floating(digits));
  }

  Json big(std::string_view digits) {
    constexpr size_t kMaxDigits = 4300;  // as Python, whose limit keeps a text from taking hours
    const size_t num_digits = digits.size() - (digits[0] == '-' ? 1 : 0);
    if (num_digits > kMaxDigits) {
      fail_at(at_ - digits.size(), fmt::format("an integer of {} digits", num_digits),
              fmt::format("at most {}", kMaxDigits));
    }
    return Json::binary({digits.begin(), digits.end()}, kBigInteger);
  }

  // Too large becomes infinity and too small zero, as in Python.
  static double floating(std::string_view digits) {
    double value = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    // from_chars does not say which of the two it was; strtod does.
    if (result.ec == std::errc::result_out_of_range) {
      return std::strtod(std::string(digits).c_str(), nullptr);
    }
    return value;
  }

  std::string_view text_;
  const std::string& subject_;
  const JsonOptions& options_;
  const bool is_exact_;
  size_t start_ = 0;
  size_t at_ = 0;
};

}  // namespace

std::optional<std::string_view> big_integer(const Json& value) {
  if (!value.is_binary()) return std::nullopt;
  const Json::binary_t& bytes = value.get_binary();
  if (!bytes.has_subtype() || bytes.subtype() != kBigInteger) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Json parse_json(std::string_view text, const std::string& subject, const JsonOptions& options) {
  return Parser(text, subject, options, /*is_exact=*/false).document();
}

Json parse_json_exactly(std::string_view text, const std::string& subject,
                        const JsonOptions& options) {
  return Parser(text, subject, options, /*is_exact=*/true).document();
}

Json read_json_file(const std::filesystem::path& path, const JsonOptions& options) {
  return parse_json(read_file(path), path.string(), options);
}

}  // namespace strata
