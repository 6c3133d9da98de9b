// Alignment between rewritten text and the input.
#include "strata/text/piece.h"

#include "strata/text/utf8.h"

namespace strata::text {

uint32_t Piece::input_begin(size_t from) const {
  size_t at = start + from;
  if (!source->is_input) return source->begin[at];
  while (at > 0 && is_continuation(source->text[at])) --at;
  return static_cast<uint32_t>(at);
}

uint32_t Piece::input_end(size_t to) const {
  size_t at = start + to;
  if (!source->is_input) return source->end[at - 1];
  while (at < source->text.size() && is_continuation(source->text[at])) ++at;
  return static_cast<uint32_t>(at);
}

Piece Arena::input(std::string_view text) {
  Source& source = add();
  if (is_valid_utf8(text)) {
    source.text = text;
    source.is_input = true;
  } else {
    size_t invalid = 0;
    for (size_t i = 0; i < text.size();) {
      const size_t valid = valid_char_length(text, i, invalid);
      const size_t length = valid == 0 ? invalid : valid;
      const size_t before = source.owned.size();
      if (valid == 0) {
        append_utf8(source.owned, 0xFFFD);
      } else {
        source.owned.append(text, i, valid);
      }
      source.begin.insert(source.begin.end(), source.owned.size() - before, i);
      source.end.insert(source.end.end(), source.owned.size() - before, i + length);
      i += length;
    }
    source.text = source.owned;
  }
  return {source.text, 0, &source};
}

Rewriter::Rewriter(const Piece& from, Arena& arena) : from_(from), source_(&arena.add()) {
  const size_t likely = from.text.size() + from.text.size() / 4 + 16;
  source_->owned.reserve(likely);
  source_->begin.reserve(likely);
  source_->end.reserve(likely);
}

void Rewriter::keep(size_t begin, size_t end) {
  if (begin == end) return;
  source_->owned.append(from_.text.substr(begin, end - begin));
  const Source& old = *from_.source;
  const size_t first = from_.start + begin, last = from_.start + end;
  if (!old.is_input) {
    const auto copy = [first, last](const std::vector<uint32_t>& from, std::vector<uint32_t>& to) {
      to.insert(to.end(), from.begin() + static_cast<ptrdiff_t>(first),
                from.begin() + static_cast<ptrdiff_t>(last));
    };
    copy(old.begin, source_->begin);
    copy(old.end, source_->end);
    return;
  }
  // Every byte stands for its whole character.
  uint32_t from = from_.input_begin(begin), to = from;
  for (size_t i = first; i < last; ++i) {
    if (i >= to) {
      from = i == first ? from : static_cast<uint32_t>(i);
      to = static_cast<uint32_t>(from + char_length(old.text, from));
    }
    source_->begin.push_back(from);
    source_->end.push_back(to);
  }
}

void Rewriter::replace(std::string_view text, size_t begin, size_t end) {
  uint32_t from = 0, to = 0;
  if (begin < end) {
    from = from_.input_begin(begin);
    to = from_.input_end(end);
  } else if (begin < from_.text.size()) {  // an insertion stands for the character after it
    from = from_.input_begin(begin);
    to = from_.input_end(begin + 1);
  } else if (!from_.text.empty()) {
    from = to = from_.input_end(begin);
  }
  source_->owned.append(text);
  source_->begin.insert(source_->begin.end(), text.size(), from);
  source_->end.insert(source_->end.end(), text.size(), to);
}

void Rewriter::replace_characters(std::string_view text, size_t begin, size_t end) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = char_length(text, i);
    const size_t next = begin + char_length(from_.text, begin);
    replace(text.substr(i, length), begin, next);
    if (next < end) begin = next;
    i += length;
  }
}

Piece Rewriter::finish() {
  source_->text = source_->owned;
  return {source_->text, 0, source_};
}

}  // namespace strata::text
