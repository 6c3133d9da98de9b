// Regular expressions of tokenizer.json, run by Oniguruma: the engine and syntax of `tokenizers`.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace strata::text {

// Threads: search functions may run at the same time.
class Regex {
 public:
  // FormatError naming the pattern when it does not compile.
  explicit Regex(const std::string& pattern);
  // A pattern that matches `text` literally.
  static Regex literal(std::string_view text);
  ~Regex();
  Regex(Regex&&) noexcept;

  // All matches from left to right as byte ranges; an empty match right after a match is skipped.
  // Requires: valid UTF-8. FormatError when the engine's backtracking limit is reached.
  std::vector<std::pair<size_t, size_t>> find_all(std::string_view text) const;
  const std::string& pattern() const { return pattern_; }

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
  std::string pattern_;
  std::string literal_;  // of literal(), which needs no engine; empty: a pattern
};

// \p{L}, \p{M}, \p{N} and \s of the engine's tables.
bool is_regex_letter(char32_t code_point);
// The cases of letters; others (modifiers, ideographs) have none.
bool is_regex_upper(char32_t code_point);  // Lu, Lt
bool is_regex_lower(char32_t code_point);  // Ll
bool is_regex_mark(char32_t code_point);
bool is_regex_number(char32_t code_point);
bool is_regex_space(char32_t code_point);
bool is_regex_symbol(char32_t code_point);  // P, S
// A number for the script of a character; -1 if the tables have none.
int script_of(char32_t code_point);

}  // namespace strata::text
