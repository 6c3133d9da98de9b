// One pass over the characters; each function follows the alternatives of its pattern in order.
#include "strata/text/split_fast.h"

#include <array>
#include <atomic>

#include "strata/text/regex.h"
#include "strata/text/utf8.h"

namespace strata::text {
namespace {

enum class Category : uint8_t {
  kUnknown,
  kUpper,
  kLower,
  kLetter,
  kMark,
  kNumber,
  kSpace,
  kSymbol,
  kOther
};

Category look_up(char32_t c) {
  if (is_regex_letter(c)) {
    return is_regex_upper(c)   ? Category::kUpper
           : is_regex_lower(c) ? Category::kLower
                               : Category::kLetter;
  }
  return is_regex_number(c)   ? Category::kNumber
         : is_regex_space(c)  ? Category::kSpace
         : is_regex_mark(c)   ? Category::kMark
         : is_regex_symbol(c) ? Category::kSymbol
                              : Category::kOther;
}

// Oniguruma searches its tables for each; those of a text are mostly few.
Category category_of(char32_t c) {
  static std::array<std::atomic<Category>, 0x10000> known = {};
  if (c >= known.size()) return look_up(c);
  Category category = known[c].load(std::memory_order_relaxed);
  if (category == Category::kUnknown) {
    category = look_up(c);
    known[c].store(category, std::memory_order_relaxed);
  }
  return category;
}

enum class Kind : uint8_t { kLetter, kNumber, kSpace, kOther, kEnd };

Kind kind_of(Category category, bool joins_marks) {
  switch (category) {
    case Category::kUpper:
    case Category::kLower:
    case Category::kLetter:
      return Kind::kLetter;
    case Category::kMark:
      return joins_marks ? Kind::kLetter : Kind::kOther;
    case Category::kNumber:
      return Kind::kNumber;
    case Category::kSpace:
      return Kind::kSpace;
    default:
      return Kind::kOther;
  }
}

class Scanner {
 public:
  // `joins_marks`: combining marks are parts of words, as letters are.
  explicit Scanner(const Piece& piece, bool joins_marks = false)
      : text_(piece.text), joins_marks_(joins_marks) {}

  Kind kind(size_t at) const {
    static const std::array<Kind, 128> ascii = [] {
      std::array<Kind, 128> kinds{};
      for (char32_t c = 0; c < 128; ++c) kinds[c] = kind_of(look_up(c), false);
      return kinds;
    }();
    if (at >= text_.size()) return Kind::kEnd;
    const auto byte = static_cast<uint8_t>(text_[at]);
    return byte < 128 ? ascii[byte] : kind_of(category_of(decode_char(text_, at)), joins_marks_);
  }
  // kUnknown: the text's end.
  Category category(size_t at) const {
    if (at >= text_.size()) return Category::kUnknown;
    const auto byte = static_cast<uint8_t>(text_[at]);
    return category_of(byte < 128 ? byte : decode_char(text_, at));
  }
  size_t next(size_t at) const { return at + char_length(text_, at); }
  size_t size() const { return text_.size(); }
  char byte(size_t at) const { return at < text_.size() ? text_[at] : '\0'; }
  bool is_newline(size_t at) const {
    return at < text_.size() && (text_[at] == '\r' || text_[at] == '\n');
  }

  // End of the longest run of `wanted` from `at`.
  size_t run(size_t at, Kind wanted, size_t limit = SIZE_MAX) const {
    for (; limit > 0 && kind(at) == wanted; --limit) at = next(at);
    return at;
  }

  // End of `'s|'t|'re|'ve|'m|'ll|'d` at `at`, or `at`. The long s folds to s.
  size_t contraction(size_t at, bool ignores_case) const {
    if (byte(at) != '\'') return at;
    const auto letter = [&](size_t i) -> char {
      const char c = byte(i);
      return ignores_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    };
    const char first = letter(at + 1);
    const char second = letter(at + 2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
        (first == 'l' && second == 'l')) {
      return at + 3;
    }
    if (ignores_case && text_.substr(at + 1, 2) == "\xC5\xBF") return at + 3;
    return at;
  }

  // `\s+(?!\S)|\s+` at `at`, where a space stands: a run leaves its last character to what follows.
  size_t spaces(size_t at) const {
    const size_t end = run(at, Kind::kSpace);
    if (end == size()) return end;
    const size_t last = previous_char(text_, end);
    return last > at ? last : end;
  }

 private:
  std::string_view text_;
  bool joins_marks_;
};

// `\s*[\r\n]+|\s+(?!\S)|\s+` at `at`, where a space stands.
size_t match_spaces(const Scanner& s, size_t at) {
  const size_t end = s.run(at, Kind::kSpace);
  for (size_t i = end; i > at; --i) {
    if (s.is_newline(i - 1)) return i;
  }
  return s.spaces(at);
}

size_t match_gpt2(const Scanner& s, size_t at) {
  if (const size_t end = s.contraction(at, /*ignores_case=*/false); end > at) return end;
  const size_t word = s.byte(at) == ' ' ? at + 1 : at;
  const Kind kind = s.kind(word);
  if (kind == Kind::kSpace || kind == Kind::kEnd) return s.spaces(at);
  return s.run(word, kind);
}

size_t match_llama3(const Scanner& s, size_t at, size_t max_digits) {
  if (const size_t end = s.contraction(at, /*ignores_case=*/true); end > at) return end;
  const Kind kind = s.kind(at);
  if (kind == Kind::kLetter) return s.run(at, kind);
  if (kind == Kind::kNumber) return s.run(at, kind, max_digits);
  const size_t after = s.next(at);
  if (!s.is_newline(at) && s.kind(after) == Kind::kLetter) return s.run(after, Kind::kLetter);
  const size_t symbols = s.byte(at) == ' ' ? after : at;
  if (s.kind(symbols) == Kind::kOther) {
    size_t end = s.run(symbols, Kind::kOther);
    while (s.is_newline(end)) ++end;
    return end;
  }
  return match_spaces(s, at);
}

void split_llama3(const Piece& piece, std::vector<Piece>& out) {
  const Scanner scanner(piece);
  for (size_t at = 0, end; at < scanner.size(); at = end) {
    end = match_llama3(scanner, at, 3);
    out.push_back(piece.sub(at, end));
  }
}

void split_qwen2(const Piece& piece, std::vector<Piece>& out) {
  const Scanner scanner(piece);
  for (size_t at = 0, end; at < scanner.size(); at = end) {
    end = match_llama3(scanner, at, 1);
    out.push_back(piece.sub(at, end));
  }
}

// In the pattern a mark before a word is either taken with it or is one itself.
void split_qwen35(const Piece& piece, std::vector<Piece>& out) {
  const Scanner scanner(piece, /*joins_marks=*/true);
  for (size_t at = 0, end; at < scanner.size(); at = end) {
    end = match_llama3(scanner, at, 1);
    out.push_back(piece.sub(at, end));
  }
}

// What letters of a word are taken for: capitals and what has no case begin it, small letters and
// what has no case end it.
bool begins_word(Category c) {
  return c == Category::kUpper || c == Category::kLetter || c == Category::kMark;
}
bool ends_word(Category c) {
  return c == Category::kLower || c == Category::kLetter || c == Category::kMark;
}

// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+` at `at`, or `at`.
size_t match_small_word(const Scanner& s, size_t at) {
  size_t end = at, last_without_case = at;  // after the last one
  for (; begins_word(s.category(end)); end = s.next(end)) {
    if (s.category(end) != Category::kUpper) last_without_case = s.next(end);
  }
  if (s.category(end) != Category::kLower) return last_without_case;
  while (ends_word(s.category(end))) end = s.next(end);
  return end;
}

// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*` at `at`, or `at`.
size_t match_capital_word(const Scanner& s, size_t at) {
  size_t end = at;
  while (begins_word(s.category(end))) end = s.next(end);
  if (end == at) return at;
  while (ends_word(s.category(end))) end = s.next(end);
  return end;
}

// The end of the word at `at`, with what may stand before it (`[^\r\n\p{L}\p{N}]?`), or `at`.
size_t match_word(const Scanner& s, size_t at) {
  const Kind kind = s.kind(at);
  const bool may_precede = (kind == Kind::kSpace || kind == Kind::kOther) && !s.is_newline(at);
  for (const auto match : {match_small_word, match_capital_word}) {
    if (may_precede) {
      const size_t begin = s.next(at);
      if (const size_t end = match(s, begin); end > begin) return end;
    }
    if (const size_t end = match(s, at); end > at) return end;
  }
  return at;
}

size_t match_cased(const Scanner& s, size_t at, size_t max_digits, bool has_contractions) {
  if (const size_t end = match_word(s, at); end > at) {
    return has_contractions ? s.contraction(end, /*ignores_case=*/true) : end;
  }
  if (s.kind(at) == Kind::kNumber) return s.run(at, Kind::kNumber, max_digits);
  const size_t symbols = s.byte(at) == ' ' ? at + 1 : at;
  if (s.kind(symbols) == Kind::kOther) {
    size_t end = s.run(symbols, Kind::kOther);
    while (s.is_newline(end) || s.byte(end) == '/') ++end;
    return end;
  }
  return match_spaces(s, at);
}

void split_o200k(const Piece& piece, std::vector<Piece>& out) {
  const Scanner scanner(piece);
  for (size_t at = 0, end; at < scanner.size(); at = end) {
    end = match_cased(scanner, at, 3, /*has_contractions=*/true);
    out.push_back(piece.sub(at, end));
  }
}

void split_tekken(const Piece& piece, std::vector<Piece>& out) {
  const Scanner scanner(piece);
  for (size_t at = 0, end; at < scanner.size(); at = end) {
    end = match_cased(scanner, at, 1, /*has_contractions=*/false);
    out.push_back(piece.sub(at, end));
  }
}

void split_digits3(const Piece& piece, std::vector<Piece>& out) {
  const Scanner scanner(piece);
  for (size_t at = 0, end; at < scanner.size(); at = end) {
    end = scanner.run(at, Kind::kNumber, 3);
    if (end == at) {
      while (end < scanner.size() && scanner.kind(end) != Kind::kNumber) end = scanner.next(end);
    }
    out.push_back(piece.sub(at, end));
  }
}

void split_ideographs(const Piece& piece, std::vector<Piece>& out) {
  const std::string_view text = piece.text;
  // None begins with a smaller byte.
  const auto is_one = [text](size_t at) {
    if (static_cast<uint8_t>(text[at]) < 0xE3) return false;
    const char32_t c = decode_char(text, at);
    return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
  };
  for (size_t at = 0, end; at < text.size(); at = end) {
    const bool are_ones = is_one(at);
    end = at;
    do {
      end += char_length(text, end);
    } while (end < text.size() && is_one(end) == are_ones);
    out.push_back(piece.sub(at, end));
  }
}

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// `at`: nothing of the pattern begins there.
size_t match_deepseek(const Scanner& s, size_t at) {
  const Category category = s.category(at);
  const bool is_symbol = category == Category::kSymbol;
  if (is_symbol && static_cast<uint8_t>(s.byte(at)) < 128 && is_ascii_letter(s.byte(at + 1))) {
    size_t end = at + 2;
    while (is_ascii_letter(s.byte(end))) ++end;
    return end;
  }
  const Kind kind = s.kind(at);  // marks are letters here
  if (kind == Kind::kLetter) return s.run(at, Kind::kLetter);
  const size_t after = s.next(at);
  if (!is_symbol && !s.is_newline(at) && s.kind(after) == Kind::kLetter) {
    return s.run(after, Kind::kLetter);
  }
  size_t end = s.byte(at) == ' ' ? after : at;
  if (s.category(end) == Category::kSymbol) {
    while (s.category(end) == Category::kSymbol) end = s.next(end);
    while (s.is_newline(end)) ++end;
    return end;
  }
  return kind == Kind::kSpace ? match_spaces(s, at) : at;
}

// What lies between matches is a piece as well.
void split_deepseek(const Piece& piece, std::vector<Piece>& out) {
  const Scanner scanner(piece, /*joins_marks=*/true);
  size_t begin = 0;  // of what does not match
  for (size_t at = 0; at < scanner.size();) {
    const size_t end = match_deepseek(scanner, at);
    if (end == at) {
      at = scanner.next(at);
      continue;
    }
    if (begin < at) out.push_back(piece.sub(begin, at));
    out.push_back(piece.sub(at, end));
    begin = at = end;
  }
  if (begin < scanner.size()) out.push_back(piece.sub(begin, scanner.size()));
}

}  // namespace

void split_gpt2(const Piece& piece, std::vector<Piece>& out) {
  const Scanner scanner(piece);
  for (size_t at = 0, end; at < scanner.size(); at = end) {
    end = match_gpt2(scanner, at);
    out.push_back(piece.sub(at, end));
  }
}

FastSplit find_fast_split(std::string_view pattern) {
  if (pattern == kGpt2Pattern) return split_gpt2;
  if (pattern == kLlama3Pattern) return split_llama3;
  if (pattern == kQwen2Pattern) return split_qwen2;
  if (pattern == kQwen35Pattern) return split_qwen35;
  if (pattern == kO200kPattern) return split_o200k;
  if (pattern == kTekkenPattern) return split_tekken;
  if (pattern == kDigits3Pattern) return split_digits3;
  if (pattern == kIdeographsPattern) return split_ideographs;
  if (pattern == kDeepSeekPattern) return split_deepseek;
  return nullptr;
}

}  // namespace strata::text
