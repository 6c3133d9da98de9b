// Lowercase, Strip, Prepend, Replace, ByteLevel and Sequence.
#include "strata/text/normalizer.h"

#include <vector>

#include "strata/base/error.h"
#include "strata/text/byte_level.h"
#include "strata/text/component_json.h"
#include "strata/text/old_unicode.h"
#include "strata/text/pattern.h"
#include "strata/text/utf8.h"

namespace strata::text {
namespace {

class Lowercase : public Normalizer {
 public:
  Piece apply(const Piece& piece, Arena& arena) const override {
    Rewriter rewriter(piece, arena);
    std::string lower;
    for (size_t i = 0; i < piece.text.size();) {
      const size_t length = char_length(piece.text, i);
      const char32_t c = decode_char(piece.text, i);
      lower.clear();
      append_utf8(lower, c == 0x130 ? U'i' : to_new_lower(c));
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
      // As in the reference, the new text stands for the last character of the match.
      rewriter.replace(content_, begin < end ? previous_char(piece.text, end) : begin, end);
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
  if (auto made = make_normal_form(type)) return made;
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "ByteLevel") return std::make_unique<ByteLevel>();
  if (type == "StripAccents") return make_strip_accents();
  if (type == "Nmt") return make_nmt();
  if (type == "Precompiled") return make_precompiled(json, where);
  if (type == "BertNormalizer") return std::make_unique<Sequence>(make_bert_steps(json, where));
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
      type, where,
      "NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, ByteLevel, "
      "BertNormalizer, Nmt, Precompiled, Sequence");
}

}  // namespace strata::text
