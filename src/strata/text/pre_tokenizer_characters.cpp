// Pre-tokenizers that split by the class of each character: Whitespace, WhitespaceSplit,
// BertPreTokenizer, Punctuation, Digits, CharDelimiterSplit, FixedLength, UnicodeScripts.
#include <optional>

#include "strata/base/error.h"
#include "strata/text/component_json.h"
#include "strata/text/old_unicode.h"
#include "strata/text/pre_tokenizer.h"
#include "strata/text/regex.h"
#include "strata/text/split_behavior.h"
#include "strata/text/utf8.h"

namespace strata::text {
namespace {

// Every character of a class is a match by itself.
class ClassSplit : public PreTokenizer {
 public:
  ClassSplit(bool (*is_match)(char32_t), Behavior behavior)
      : is_match_(is_match), behavior_(behavior) {}
  void split(const Piece& piece, Arena&, std::vector<Piece>& out) const override {
    std::vector<Range> matches;
    for (size_t i = 0; i < piece.text.size();) {
      const size_t length = char_length(piece.text, i);
      if (is_match_(decode_char(piece.text, i))) matches.emplace_back(i, i + length);
      i += length;
    }
    split_at(piece, matches, behavior_, /*invert=*/false, out);
  }

 private:
  bool (*is_match_)(char32_t);
  Behavior behavior_;
};

// Runs of characters of one kind; kind 0 is left out.
class RunSplit : public PreTokenizer {
 public:
  enum Kind { kDropped, kWord, kOther, kAlone };
  explicit RunSplit(Kind (*kind)(char32_t)) : kind_(kind) {}
  void split(const Piece& piece, Arena&, std::vector<Piece>& out) const override {
    size_t begin = 0;
    Kind current = kDropped;
    const auto flush = [&](size_t end) {
      if (current != kDropped && begin < end) out.push_back(piece.sub(begin, end));
      begin = end;
    };
    for (size_t i = 0; i < piece.text.size(); i += char_length(piece.text, i)) {
      const Kind kind = kind_(decode_char(piece.text, i));
      if (kind != current || kind == kAlone) flush(i);
      current = kind;
    }
    flush(piece.text.size());
  }

 private:
  Kind (*kind_)(char32_t);
};

RunSplit::Kind whitespace_kind(char32_t c) {  // \w+|[^\w\s]+
  return is_word(c) ? RunSplit::kWord : is_white_space(c) ? RunSplit::kDropped : RunSplit::kOther;
}

RunSplit::Kind whitespace_split_kind(char32_t c) {
  return is_white_space(c) ? RunSplit::kDropped : RunSplit::kWord;
}

RunSplit::Kind bert_kind(char32_t c) {
  return is_white_space(c)       ? RunSplit::kDropped
         : is_old_punctuation(c) ? RunSplit::kAlone
                                 : RunSplit::kWord;
}

class CharDelimiterSplit : public PreTokenizer {
 public:
  explicit CharDelimiterSplit(std::string delimiter) : delimiter_(std::move(delimiter)) {}
  void split(const Piece& piece, Arena&, std::vector<Piece>& out) const override {
    std::vector<Range> matches;
    for (size_t at = piece.text.find(delimiter_); at != std::string_view::npos;
         at = piece.text.find(delimiter_, at + delimiter_.size())) {
      matches.emplace_back(at, at + delimiter_.size());
    }
    split_at(piece, matches, Behavior::kRemoved, /*invert=*/false, out);
  }

 private:
  std::string delimiter_;
};

class FixedLength : public PreTokenizer {
 public:
  explicit FixedLength(int64_t length) : length_(length) {}
  void split(const Piece& piece, Arena&, std::vector<Piece>& out) const override {
    size_t begin = 0;
    int64_t count = 0;
    for (size_t i = 0; i < piece.text.size(); i += char_length(piece.text, i)) {
      if (count++ == length_) {
        out.push_back(piece.sub(begin, i));
        begin = i;
        count = 1;
      }
    }
    if (begin < piece.text.size()) out.push_back(piece.sub(begin, piece.text.size()));
  }

 private:
  int64_t length_;
};

// Cuts where the script changes. A space belongs to no script; those at the begin are left out, as
// in the reference. Kana count as Han.
class UnicodeScripts : public PreTokenizer {
 public:
  void split(const Piece& piece, Arena&, std::vector<Piece>& out) const override {
    std::optional<int> last;
    std::optional<size_t> begin;
    for (size_t i = 0; i < piece.text.size(); i += char_length(piece.text, i)) {
      const char32_t c = decode_char(piece.text, i);
      if (c == ' ') continue;
      const int script = c == 0x30FC ? script_of(U'漢') : old_script(c);
      if (script < 0 || last == script) continue;  // characters of no script are like spaces
      if (begin) out.push_back(piece.sub(*begin, i));
      begin = i;
      last = script;
    }
    if (begin) out.push_back(piece.sub(*begin, piece.text.size()));
  }

 private:
  // Four characters changed their script since the reference's tables.
  static int old_script(char32_t c) {
    if (c == 0x589 || c == 0x61C) return script_of(U',');
    if (c == 0x953 || c == 0x954) return script_of(U'क');
    if (is_new_in_scripts(c)) return -1;
    return kana_as_han(script_of(c));
  }
  static int kana_as_han(int script) {
    static const int han = script_of(U'漢'), hiragana = script_of(U'あ'),
                     katakana = script_of(U'ア');
    return script == hiragana || script == katakana ? han : script;
  }
};

}  // namespace

std::unique_ptr<PreTokenizer> make_character_splitter(const std::string& type, const Json& json,
                                                      const std::string& where) {
  if (type == "Whitespace") return std::make_unique<RunSplit>(whitespace_kind);
  if (type == "WhitespaceSplit") return std::make_unique<RunSplit>(whitespace_split_kind);
  if (type == "BertPreTokenizer") return std::make_unique<RunSplit>(bert_kind);
  if (type == "UnicodeScripts") return std::make_unique<UnicodeScripts>();
  if (type == "Punctuation") {
    const auto name = string_field(json, "behavior", where).value_or("Isolated");
    return std::make_unique<ClassSplit>(is_old_punctuation, make_behavior(name, where));
  }
  if (type == "Digits") {
    const bool is_individual = bool_field(json, "individual_digits", false, where);
    return std::make_unique<ClassSplit>(
        is_number, is_individual ? Behavior::kIsolated : Behavior::kContiguous);
  }
  if (type == "CharDelimiterSplit") {
    const std::string delimiter = required_string(json, "delimiter", where);
    if (delimiter.empty()) throw FormatError("{}: found no delimiter, expected a character", where);
    return std::make_unique<CharDelimiterSplit>(delimiter);
  }
  if (type == "FixedLength") {
    const int64_t length = int_field(json, "length", 5, where);
    if (length < 1) throw FormatError("{}: found length {}, expected at least 1", where, length);
    return std::make_unique<FixedLength>(length);
  }
  return nullptr;
}

}  // namespace strata::text
