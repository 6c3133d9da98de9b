// NFC/NFD/NFKC/NFKD, Lowercase, Strip, Prepend, Replace, ByteLevel and Sequence.
#include "strata/text/normalizer.h"

#include <utf8proc.h>

#include <cstdlib>
#include <vector>

#include "strata/base/error.h"
#include "strata/text/byte_level.h"
#include "strata/text/component_json.h"
#include "strata/text/pattern.h"
#include "strata/text/utf8.h"

namespace strata::text {
namespace {

// One of the four normal forms of Unicode.
class NormalForm : public Normalizer {
 public:
  explicit NormalForm(int options) : options_(options | UTF8PROC_STABLE) {}

  Piece apply(const Piece& piece, Arena& arena) const override {
    if (is_ascii(piece.text)) return piece;
    const std::string whole = normalize(piece.text);
    if (whole == piece.text) return piece;
    // Alignment: a stretch that begins with a starter is normalised alone; stretches whose results
    // do not add up to the whole (composition across them) are joined.
    Rewriter rewriter(piece, arena);
    size_t begin = 0, written = 0;
    for (size_t i = 0; i < piece.text.size();) {
      const size_t next = next_starter(piece.text, i);
      const std::string part = normalize(piece.text.substr(begin, next - begin));
      const bool is_last = next == piece.text.size();
      if (is_last || whole.compare(written, part.size(), part) == 0) {
        const size_t length = is_last ? whole.size() - written : part.size();
        rewriter.replace(std::string_view(whole).substr(written, length), begin, next);
        written += length;
        begin = next;
      }
      i = next;
    }
    return rewriter.finish();
  }

 private:
  std::string normalize(std::string_view text) const {
    utf8proc_uint8_t* result = nullptr;
    const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                     static_cast<utf8proc_ssize_t>(text.size()), &result,
                                     static_cast<utf8proc_option_t>(options_));
    if (length < 0) throw InternalError("normal form: found {}", utf8proc_errmsg(length));
    std::string out(reinterpret_cast<char*>(result), static_cast<size_t>(length));
    std::free(result);
    return out;
  }
  static size_t next_starter(std::string_view text, size_t from) {
    size_t i = from + char_length(text, from);
    while (i < text.size()) {
      const auto c = static_cast<utf8proc_int32_t>(decode_char(text, i));
      if (utf8proc_get_property(c)->combining_class == 0) break;
      i += char_length(text, i);
    }
    return i;
  }
  int options_;
};

class Lowercase : public Normalizer {
 public:
  Piece apply(const Piece& piece, Arena& arena) const override {
    Rewriter rewriter(piece, arena);
    std::string lower;
    for (size_t i = 0; i < piece.text.size();) {
      const size_t length = char_length(piece.text, i);
      const char32_t c = decode_char(piece.text, i);
      lower.clear();
      append_utf8(lower, c == 0x130 ? U'i' : to_lower(c));
      if (c == 0x130) append_utf8(lower, 0x307);  // the only lower case of two characters
      rewriter.replace(lower, i, i + length);
      i += length;
    }
    return rewriter.finish();
  }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  Piece apply(const Piece& piece, Arena&) const override {
    size_t begin = 0, end = piece.text.size();
    while (left_ && begin < end && is_white_space(decode_char(piece.text, begin))) {
      begin += char_length(piece.text, begin);
    }
    while (right_ && end > begin) {
      const size_t last = previous_char(piece.text, end);
      if (!is_white_space(decode_char(piece.text, last))) break;
      end = last;
    }
    return piece.sub(begin, end);
  }

 private:
  bool left_, right_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  Piece apply(const Piece& piece, Arena& arena) const override {
    if (piece.text.empty()) return piece;
    Rewriter rewriter(piece, arena);
    rewriter.replace(prefix_, 0, 0);
    rewriter.keep(0, piece.text.size());
    return rewriter.finish();
  }

 private:
  std::string prefix_;
};

class Replace : public Normalizer {
 public:
  Replace(Regex pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  Piece apply(const Piece& piece, Arena& arena) const override {
    const auto matches = pattern_.find_all(piece.text);
    if (matches.empty()) return piece;
    Rewriter rewriter(piece, arena);
    size_t done = 0;
    for (const auto& [begin, end] : matches) {
      rewriter.keep(done, begin);
      rewriter.replace(content_, begin, end);
      done = end;
    }
    rewriter.keep(done, piece.text.size());
    return rewriter.finish();
  }

 private:
  Regex pattern_;
  std::string content_;
};

class ByteLevel : public Normalizer {
 public:
  Piece apply(const Piece& piece, Arena& arena) const override {
    Rewriter rewriter(piece, arena);
    for (size_t i = 0; i < piece.text.size(); ++i) {
      rewriter.replace(bytes_to_characters(piece.text.substr(i, 1)), i, i + 1);
    }
    return rewriter.finish();
  }
};

class Sequence : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  Piece apply(const Piece& piece, Arena& arena) const override {
    Piece current = piece;
    for (const auto& step : steps_) current = step->apply(current, arena);
    return current;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const Json& json, const std::string& where) {
  if (json.is_null()) return nullptr;
  const std::string type = component_type(json, where);
  const int compose = UTF8PROC_COMPOSE, decompose = UTF8PROC_DECOMPOSE, compat = UTF8PROC_COMPAT;
  if (type == "NFC") return std::make_unique<NormalForm>(compose);
  if (type == "NFD") return std::make_unique<NormalForm>(decompose);
  if (type == "NFKC") return std::make_unique<NormalForm>(compose | compat);
  if (type == "NFKD") return std::make_unique<NormalForm>(decompose | compat);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "ByteLevel") return std::make_unique<ByteLevel>();
  if (type == "Prepend") return std::make_unique<Prepend>(required_string(json, "prepend", where));
  if (type == "Strip") {
    return std::make_unique<Strip>(bool_field(json, "strip_left", true, where),
                                   bool_field(json, "strip_right", true, where));
  }
  if (type == "Replace") {
    return std::make_unique<Replace>(make_pattern(require_field(json, "pattern", where), where),
                                     required_string(json, "content", where));
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Normalizer>> steps;
    for (const Json& step : require_field(json, "normalizers", where)) {
      if (auto made = make_normalizer(step, where + ".normalizers"))
        steps.push_back(std::move(made));
    }
    return std::make_unique<Sequence>(std::move(steps));
  }
  throw_unsupported(
      type, where, "NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace, ByteLevel, Sequence");
}

}  // namespace strata::text
