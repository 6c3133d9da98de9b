// A stretch of text on its way through the pipeline, with the way back to the input text.
// Never decides where to split or what to change.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace strata::text {

// What pieces point into: the input text itself, or text that a step rewrote.
struct Source {
  std::string owned;                 // rewritten text; empty when `text` views the input
  std::string_view text;             // the whole source
  bool is_input = false;             // byte i stands for byte i of the input
  std::vector<uint32_t> begin, end;  // per byte of a rewritten text: the input bytes it stands for
};

// Invariants: text == source->text.substr(start, text.size()).
struct Piece {
  std::string_view text;
  uint32_t start = 0;
  const Source* source = nullptr;

  Piece sub(size_t from, size_t to) const {
    return {text.substr(from, to - from), static_cast<uint32_t>(start + from), source};
  }
  // Input bytes that [from, to) of this piece stands for, widened to whole characters.
  // Requires: from < to <= text.size().
  uint32_t input_begin(size_t from) const;
  uint32_t input_end(size_t to) const;
};

// Keeps rewritten texts alive while an encoding runs.
class Arena {
 public:
  // The input as one piece; bytes that are not UTF-8 become U+FFFD.
  Piece input(std::string_view text);
  Source& add() { return sources_.emplace_back(); }

 private:
  std::deque<Source> sources_;
};

// Builds the changed text of a piece, noting for each new byte where it came from.
class Rewriter {
 public:
  Rewriter(const Piece& from, Arena& arena);
  // Keeps [begin, end) of the old text.
  void keep(size_t begin, size_t end);
  // Puts `text` in the place of [begin, end) of the old text; an empty range is an insertion.
  void replace(std::string_view text, size_t begin, size_t end);
  // The same character by character, as `tokenizers` counts: each new character stands for the old
  // one in its place, further ones for the last old one; old ones without a new one for nothing.
  // Requires: begin < end.
  void replace_characters(std::string_view text, size_t begin, size_t end);
  Piece finish();

 private:
  Piece from_;
  Source* source_;
};

}  // namespace strata::text
