// The four normal forms of Unicode, with the alignment of the reference: each new character says
// how many old ones it stands for, as unicode-normalization-alignments counts them.
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <vector>

#include "strata/base/error.h"
#include "strata/text/normalizer.h"
#include "strata/text/old_unicode.h"
#include "strata/text/utf8.h"

namespace strata::text {
namespace {

// A character of the result. change 0: stands for the next old character; 1: comes in addition, for
// the old one before; -k: for the next old one, and the k after it vanish.
struct Changed {
  char32_t character;
  int change;
};

int combining_class(char32_t c) {
  if (c < 0x300 || is_new_in_forms(c)) return 0;
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

bool has_new_character(std::string_view text) {
  for (size_t i = 0; i < text.size(); i += char_length(text, i)) {
    if (is_new_in_forms(decode_char(text, i))) return true;
  }
  return false;
}

std::string to_form(std::string_view text, int options) {
  utf8proc_uint8_t* result = nullptr;
  const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                   static_cast<utf8proc_ssize_t>(text.size()), &result,
                                   static_cast<utf8proc_option_t>(options));
  if (length < 0) throw InternalError("normal form: found {}", utf8proc_errmsg(length));
  std::string out(reinterpret_cast<char*>(result), static_cast<size_t>(length));
  std::free(result);
  return out;
}

// The character that two make together, if any.
std::optional<char32_t> compose_pair(char32_t first, char32_t second) {
  if (second < 0x300 || is_new_in_forms(first) || is_new_in_forms(second)) return std::nullopt;
  std::string pair;
  append_utf8(pair, first);
  append_utf8(pair, second);
  const std::string made = to_form(pair, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  if (char_length(made, 0) != made.size()) return std::nullopt;
  const char32_t character = decode_char(made, 0);
  return is_new_in_forms(character) ? std::nullopt : std::optional(character);
}

std::vector<Changed> decompose(std::string_view text, int options) {
  std::vector<Changed> out;
  out.reserve(text.size());
  const auto settings =
      static_cast<utf8proc_option_t>((options & ~UTF8PROC_COMPOSE) | UTF8PROC_DECOMPOSE);
  for (size_t i = 0; i < text.size(); i += char_length(text, i)) {
    const char32_t c = decode_char(text, i);
    utf8proc_int32_t parts[32];
    int boundary = 0;
    const bool stays = c < 0x80 || is_new_in_forms(c);
    const auto count = stays ? 1
                             : utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, 32,
                                                       settings, &boundary);
    if (stays) parts[0] = static_cast<utf8proc_int32_t>(c);
    for (utf8proc_ssize_t k = 0; k < count; ++k) {
      out.push_back({static_cast<char32_t>(parts[k]), k > 0});
    }
  }
  const auto by_class = [](const Changed& a, const Changed& b) {
    return combining_class(a.character) < combining_class(b.character);
  };
  for (auto at = out.begin(); at != out.end();) {
    const auto is_mark = [](const Changed& c) { return combining_class(c.character) != 0; };
    const auto begin = std::find_if(at, out.end(), is_mark);
    at = std::find_if_not(begin, out.end(), is_mark);
    std::stable_sort(begin, at, by_class);
  }
  return out;
}

// Joins starters with what follows them (Unicode, 3.11).
std::vector<Changed> compose(const std::vector<Changed>& in) {
  std::vector<Changed> out;
  out.reserve(in.size());
  std::optional<size_t> starter;  // index in `out`
  int last_class = -1;            // of what stands between the starter and here; -1: nothing
  for (const Changed& next : in) {
    const int next_class = combining_class(next.character);
    if (starter && last_class < next_class) {
      if (const auto made = compose_pair(out[*starter].character, next.character)) {
        out[*starter] = {*made, out[*starter].change + next.change - 1};
        continue;
      }
    }
    if (next_class == 0) {
      starter = out.size();
      last_class = -1;
    } else {
      last_class = next_class;
    }
    out.push_back(next);
  }
  return out;
}

class NormalForm : public Normalizer {
 public:
  explicit NormalForm(int options) : options_(options | UTF8PROC_STABLE) {}

  Piece apply(const Piece& piece, Arena& arena) const override {
    if (is_ascii(piece.text)) return piece;
    if (to_form(piece.text, options_) == piece.text && !has_new_character(piece.text)) return piece;
    std::vector<Changed> result = decompose(piece.text, options_);
    if ((options_ & UTF8PROC_COMPOSE) != 0) result = compose(result);
    Rewriter rewriter(piece, arena);
    std::string character;
    const std::string_view text = piece.text;
    size_t next = 0;  // the first old character that no new one stands for yet
    const auto skip = [&] { next += next < text.size() ? char_length(text, next) : 0; };
    for (const Changed& changed : result) {
      if (changed.change <= 0 || next == 0) skip();
      character.clear();
      append_utf8(character, changed.character);
      rewriter.replace(character, previous_char(text, next), next);
      for (int k = 0; k < -changed.change; ++k) skip();
    }
    return rewriter.finish();
  }

 private:
  int options_;
};

}  // namespace

std::unique_ptr<Normalizer> make_normal_form(const std::string& type) {
  constexpr int kCompose = UTF8PROC_COMPOSE, kDecompose = UTF8PROC_DECOMPOSE,
                kCompat = UTF8PROC_COMPAT;
  if (type == "NFC") return std::make_unique<NormalForm>(kCompose);
  if (type == "NFD") return std::make_unique<NormalForm>(kDecompose);
  if (type == "NFKC") return std::make_unique<NormalForm>(kCompose | kCompat);
  if (type == "NFKD") return std::make_unique<NormalForm>(kDecompose | kCompat);
  return nullptr;
}

}  // namespace strata::text
