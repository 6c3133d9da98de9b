// SentencePiece's character map (nmt_nfkc and the like): a double-array trie of byte strings and
// the strings that replace them. Source: spm_precompiled of `tokenizers`, with its one oddity: the
// shortest match of a grapheme cluster replaces the whole cluster. Or as SentencePiece itself reads
// it ("longest"): the longest match at each character.
#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "strata/base/error.h"
#include "strata/text/base64.h"
#include "strata/text/component_json.h"
#include "strata/text/normalizer.h"
#include "strata/text/utf8.h"

namespace strata::text {
namespace {

class CharacterMap {
 public:
  CharacterMap(std::string blob, const std::string& where) : blob_(std::move(blob)) {
    uint32_t trie_bytes = 0;
    if (blob_.size() >= 4) std::memcpy(&trie_bytes, blob_.data(), 4);
    if (blob_.size() < 4 || trie_bytes % 4 != 0 || trie_bytes == 0 ||
        trie_bytes > blob_.size() - 4) {
      throw FormatError(
          "{}: found a precompiled_charsmap of {} bytes with a trie of {}, expected "
          "one that holds its trie",
          where, blob_.size(), trie_bytes);
    }
    units_.resize(trie_bytes / 4);
    std::memcpy(units_.data(), blob_.data() + 4, trie_bytes);
    texts_ = std::string_view(blob_).substr(4 + trie_bytes);
  }
  CharacterMap(const CharacterMap&) = delete;

  // What replaces the shortest mapped beginning of `text`, if there is one.
  std::optional<std::string_view> find(std::string_view text) const {
    const auto match = walk(text, /*wants_longest=*/false);
    return match ? std::optional(match->replacement) : std::nullopt;
  }

  struct Match {
    std::string_view replacement;
    size_t length;  // of what it replaces
  };
  std::optional<Match> find_longest(std::string_view text) const {
    return walk(text, /*wants_longest=*/true);
  }

 private:
  std::optional<Match> walk(std::string_view text, bool wants_longest) const {
    std::optional<Match> found;
    size_t at = offset(units_[0]);
    for (size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<uint8_t>(text[i]);
      at ^= byte;
      if (byte == 0 || at >= units_.size()) return found;
      const uint32_t unit = units_[at];
      if ((unit & 0x800000FFu) != byte) return found;
      at ^= offset(unit);
      if ((unit >> 8 & 1) == 0) continue;
      if (at >= units_.size()) return found;
      const size_t begin = units_[at] & 0x7FFFFFFFu;
      if (begin > texts_.size()) return found;
      const size_t end = std::min(texts_.find('\0', begin), texts_.size());
      found = Match{texts_.substr(begin, end - begin), i + 1};
      if (!wants_longest) return found;
    }
    return found;
  }
  static size_t offset(uint32_t unit) {
    return static_cast<size_t>(unit >> 10) << ((unit & 0x200u) >> 6);
  }
  std::string blob_;
  std::vector<uint32_t> units_;
  std::string_view texts_;
};

// End of the extended grapheme cluster at `begin`.
size_t cluster_end(std::string_view text, size_t begin) {
  utf8proc_int32_t state = 0;
  size_t at = begin;
  while (true) {
    const auto previous = static_cast<utf8proc_int32_t>(decode_char(text, at));
    at += char_length(text, at);
    if (at == text.size()) return at;
    const auto next = static_cast<utf8proc_int32_t>(decode_char(text, at));
    if (utf8proc_grapheme_break_stateful(previous, next, &state)) return at;
  }
}

// A part of the old text, one cluster or character, and what the map puts in its place.
struct Replacement {
  std::string_view text;
  size_t begin;
  size_t end;
};

size_t num_characters(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return !is_continuation(c); }));
}

// `tokenizers` books removed characters on the new character before them. Where there is none, or
// where that one had been added, characters stand for other old ones than those they came from.
bool shifts_ranges(const std::vector<Replacement>& replacements) {
  enum { kNothing, kAdded, kOther } last = kNothing;
  size_t done = 0;
  for (const auto& [text, begin, end] : replacements) {
    if (begin > done) last = kOther;
    done = end;
    if (text.empty() && last != kOther) return true;
    if (!text.empty()) last = num_characters(text) > 1 ? kAdded : kOther;
  }
  return false;
}

// A new character, and what it does to the old ones: 0: it stands for the next one; 1: it is added;
// -n: n more after its own are removed.
struct NewCharacter {
  std::string_view text;
  int change;
};

std::vector<NewCharacter> new_characters(std::string_view old,
                                         const std::vector<Replacement>& replacements) {
  std::vector<NewCharacter> list;
  const auto add = [&](std::string_view text, size_t num_old) {
    const size_t first = list.size();
    for (size_t i = 0; i < text.size(); i += char_length(text, i)) {
      const bool is_added = list.size() - first >= num_old;
      list.push_back({text.substr(i, char_length(text, i)), is_added ? 1 : 0});
    }
    const size_t num_new = list.size() - first;
    if (num_new < num_old && !list.empty()) {
      list.back().change -= static_cast<int>(num_old - num_new);
    }
  };
  size_t done = 0;
  for (const auto& [text, begin, end] : replacements) {
    const std::string_view kept = old.substr(done, begin - done);
    add(kept, num_characters(kept));
    add(text, num_characters(old.substr(begin, end - begin)));
    done = end;
  }
  const std::string_view kept = old.substr(done);
  add(kept, num_characters(kept));
  return list;
}

Piece rewrite_as_booked(const Piece& piece, Arena& arena,
                        const std::vector<Replacement>& replacements) {
  const std::string_view old = piece.text;
  Rewriter rewriter(piece, arena);
  size_t before = 0, next = 0;  // the old character that was used last, and the one after it
  for (const auto& [text, change] : new_characters(old, replacements)) {
    if (change > 0) {
      rewriter.replace(text, before, next);
      continue;
    }
    before = next;
    next += char_length(old, next);
    rewriter.replace(text, before, next);
    for (int i = change; i < 0; ++i) {
      before = next;
      next += char_length(old, next);
    }
  }
  return rewriter.finish();
}

class Precompiled : public Normalizer {
 public:
  Precompiled(std::string blob, const std::string& where) : map_(std::move(blob), where) {
    for (char32_t c = 0; c < 128; ++c) {
      const char text[] = {static_cast<char>(c)};
      ascii_changes_[c] = map_.find({text, 1}).has_value();
    }
  }

  Piece apply(const Piece& piece, Arena& arena) const override {
    const std::vector<Replacement> replacements = replacements_in(piece.text);
    if (replacements.empty()) return piece;
    if (shifts_ranges(replacements)) return rewrite_as_booked(piece, arena, replacements);
    Rewriter rewriter(piece, arena);
    size_t done = 0;
    for (const auto& [text, begin, end] : replacements) {
      rewriter.keep(done, begin);
      rewriter.replace_characters(text, begin, end);
      done = end;
    }
    rewriter.keep(done, piece.text.size());
    return rewriter.finish();
  }

 private:
  static constexpr size_t kMaxClusterBytes = 6;

  std::vector<Replacement> replacements_in(std::string_view text) const {
    std::vector<Replacement> found;
    for (size_t i = 0; i < text.size();) {
      if (is_plain(text, i)) {
        ++i;
        continue;
      }
      const size_t end = cluster_end(text, i);
      if (end - i < kMaxClusterBytes) {
        if (const auto whole = map_.find(text.substr(i, end - i))) {
          found.push_back({*whole, i, end});
          i = end;
          continue;
        }
      }
      for (; i < end; i += char_length(text, i)) {
        const size_t length = char_length(text, i);
        if (const auto mapped = map_.find(text.substr(i, length))) {
          found.push_back({*mapped, i, i + length});
        }
      }
    }
    return found;
  }

  // An ASCII character that stays, and that nothing after it joins.
  bool is_plain(std::string_view text, size_t at) const {
    const auto c = static_cast<uint8_t>(text[at]);
    const bool next_is_ascii = at + 1 == text.size() || static_cast<uint8_t>(text[at + 1]) < 0x80;
    return c < 0x80 && c != '\r' && !ascii_changes_[c] && next_is_ascii;
  }
  CharacterMap map_;
  bool ascii_changes_[128] = {};
};

class LongestPrecompiled : public Normalizer {
 public:
  LongestPrecompiled(std::string blob, const std::string& where) : map_(std::move(blob), where) {}

  Piece apply(const Piece& piece, Arena& arena) const override {
    const std::string_view text = piece.text;
    Rewriter rewriter(piece, arena);
    for (size_t i = 0; i < text.size();) {
      if (const auto match = map_.find_longest(text.substr(i))) {
        rewriter.replace_characters(match->replacement, i, i + match->length);
        i += match->length;
      } else {
        const size_t end = i + char_length(text, i);
        rewriter.keep(i, end);
        i = end;
      }
    }
    return rewriter.finish();
  }

 private:
  CharacterMap map_;
};

}  // namespace

std::unique_ptr<Normalizer> make_precompiled(const Json& json, const std::string& where) {
  const std::string text = required_string(json, "precompiled_charsmap", where);
  if (json.value("longest", false)) {
    return std::make_unique<LongestPrecompiled>(decode_base64(text, where), where);
  }
  return std::make_unique<Precompiled>(decode_base64(text, where), where);
}

}  // namespace strata::text
