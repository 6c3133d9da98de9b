// ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace and Sequence.
#include "strata/text/decoder.h"

#include <algorithm>

#include "strata/base/error.h"
#include "strata/text/byte_level.h"
#include "strata/text/component_json.h"
#include "strata/text/pattern.h"
#include "strata/text/utf8.h"

namespace strata::text {
namespace {

std::string join(const std::vector<std::string>& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  return all;
}

class ByteLevel : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string bytes, token_bytes;
    for (const std::string& token : tokens) {
      token_bytes.clear();
      bool is_mapped = true;
      for (size_t i = 0; i < token.size() && is_mapped; i += char_length(token, i)) {
        const int byte = character_to_byte(decode_char(token, i));
        is_mapped = byte >= 0;
        token_bytes.push_back(static_cast<char>(byte));
      }
      bytes += is_mapped ? token_bytes : token;
    }
    tokens.assign(1, replace_invalid_utf8(bytes));
  }
};

class ByteFallback : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> out;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (is_valid_utf8(bytes)) {
        out.push_back(bytes);
      } else {
        out.insert(out.end(), bytes.size(), "\xEF\xBF\xBD");
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      const int byte = byte_of_token(token);
      if (byte >= 0) {
        bytes.push_back(static_cast<char>(byte));
      } else {
        flush();
        out.push_back(std::move(token));
      }
    }
    flush();
    tokens = std::move(out);
  }
  bool joins_bytes() const override { return true; }
};

class Fuse : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override { tokens.assign(1, join(tokens)); }
};

class Replace : public Decoder {
 public:
  Replace(Regex pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      const auto matches = pattern_.find_all(token);
      for (auto match = matches.rbegin(); match != matches.rend(); ++match) {
        token.replace(match->first, match->second - match->first, content_);
      }
    }
  }

 private:
  Regex pattern_;
  std::string content_;
};

class Strip : public Decoder {
 public:
  Strip(std::string content, int64_t start, int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      for (int64_t i = 0; i < start_ && token.starts_with(content_); ++i) {
        token.erase(0, content_.size());
      }
      for (int64_t i = 0; i < stop_ && token.ends_with(content_); ++i) {
        token.resize(token.size() - content_.size());
      }
    }
  }

 private:
  std::string content_;
  int64_t start_, stop_;
};

class Metaspace : public Decoder {
 public:
  Metaspace(std::string replacement, bool drops_first)
      : replacement_(std::move(replacement)), drops_first_(drops_first) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::string out;
      size_t done = 0;
      for (size_t at; (at = tokens[i].find(replacement_, done)) != std::string::npos;) {
        out.append(tokens[i], done, at - done);
        if (i > 0 || !drops_first_) out.push_back(' ');
        done = at + replacement_.size();
      }
      tokens[i] = out.append(tokens[i], done);
    }
  }

 private:
  std::string replacement_;
  bool drops_first_;
};

class Sequence : public Decoder {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Decoder>> steps) : steps_(std::move(steps)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (const auto& step : steps_) step->apply(tokens);
  }
  bool joins_bytes() const override {
    return std::any_of(steps_.begin(), steps_.end(),
                       [](const auto& s) { return s->joins_bytes(); });
  }

 private:
  std::vector<std::unique_ptr<Decoder>> steps_;
};

std::string one_character(const Json& json, const char* key, const std::string& where) {
  std::string text = required_string(json, key, where);
  if (text.empty()) throw FormatError("{}: found empty \"{}\", expected a character", where, key);
  return text;
}

}  // namespace

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (size_t i = 3; i < 5; ++i) {
    const char c = token[i];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

std::unique_ptr<Decoder> make_decoder(const Json& json, const std::string& where) {
  if (json.is_null()) return nullptr;
  const std::string type = component_type(json, where);
  if (type == "ByteLevel") return std::make_unique<ByteLevel>();
  if (type == "ByteFallback") return std::make_unique<ByteFallback>();
  if (type == "Fuse") return std::make_unique<Fuse>();
  if (type == "Replace") {
    return std::make_unique<Replace>(make_pattern(require_field(json, "pattern", where), where),
                                     required_string(json, "content", where));
  }
  if (type == "Strip") {
    return std::make_unique<Strip>(one_character(json, "content", where),
                                   int_field(json, "start", 0, where),
                                   int_field(json, "stop", 0, where));
  }
  if (type == "Metaspace") {
    const bool is_never =
        string_field(json, "prepend_scheme", where).value_or("always") == "never" ||
        !bool_field(json, "add_prefix_space", true, where);
    return std::make_unique<Metaspace>(one_character(json, "replacement", where), !is_never);
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Decoder>> steps;
    for (const Json& step : require_field(json, "decoders", where)) {
      if (auto made = make_decoder(step, where + ".decoders")) steps.push_back(std::move(made));
    }
    return std::make_unique<Sequence>(std::move(steps));
  }
  if (auto made = make_word_decoder(type, json, where)) return made;
  throw_unsupported(type, where,
                    "ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, WordPiece, "
                    "BPEDecoder, CTC, Sequence");
}

}  // namespace strata::text
