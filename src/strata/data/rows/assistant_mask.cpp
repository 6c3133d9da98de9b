#include "strata/data/rows/assistant_mask.h"

#include <algorithm>
#include <utility>

#include "strata/base/error.h"

namespace strata::data {
namespace {

std::optional<bool> wish_of_message(const Json& messages, size_t k) {
  try {
    return wish_of(messages[k]);
  } catch (const FormatError& error) {
    throw FormatError("message {}: {}", k + 1, error.what());
  }
}

bool overlap(const ByteSpan& a, const ByteSpan& b) {
  return a.first < b.second && b.first < a.second;
}

// Where the assistant's messages stand: what the template's blocks wrote for them, or without
// blocks what TurnSpans finds. A block may hold more than the message's place (reasoning marks that
// the prompt of an answer writes as well), so that whole blocks are taken where each answer has one
// of its own, and the parts of blocks at its place otherwise.
class Answers {
 public:
  Answers(const text::ChatTemplate& tmpl, const Json& messages, const TurnSpans& turns)
      : turns_(turns), has_blocks_(tmpl.has_generation_blocks()) {
    for (size_t k = 0; k < messages.size(); ++k) {
      if (is_assistant(messages[k])) answers_.push_back(k);
    }
  }

  std::vector<ByteSpan> spans_of(size_t k) {
    if (!has_blocks_) return {turns_.find(k)};
    const auto& blocks = turns_.chat().generation;
    if (!is_paired_) is_paired_ = pair();
    if (*is_paired_) {
      return {blocks[static_cast<size_t>(std::ranges::find(answers_, k) - answers_.begin())]};
    }
    const auto [begin, end] = turns_.find(k);
    std::vector<ByteSpan> found;
    for (const ByteSpan& block : blocks) {
      if (!overlap(block, {begin, end})) continue;
      found.emplace_back(std::max(block.first, begin), std::min(block.second, end));
    }
    return found;
  }

 private:
  // Whether block i is answer i's: as many of them, and none at another answer's place.
  bool pair() const {
    const auto& blocks = turns_.chat().generation;
    if (answers_.size() != blocks.size()) return false;
    for (size_t i = 0; i < answers_.size(); ++i) {
      const std::optional<ByteSpan> place = place_of(answers_[i]);
      if (!place) continue;
      for (size_t j = 0; j < blocks.size(); ++j) {
        const bool is_empty = blocks[j].first >= blocks[j].second;
        if (!is_empty && overlap(*place, blocks[j]) != (i == j)) return false;
      }
    }
    return true;
  }

  // Nothing if it cannot be found: the order has to do then.
  std::optional<ByteSpan> place_of(size_t k) const {
    try {
      return turns_.find(k);
    } catch (const FormatError&) {
      return std::nullopt;
    }
  }

  const TurnSpans& turns_;
  const bool has_blocks_;
  std::optional<bool> is_paired_;
  std::vector<size_t> answers_;
};

// Takes `hole` out of the spans.
void cut(const ByteSpan& hole, std::vector<ByteSpan>& spans) {
  std::vector<ByteSpan> left;
  for (const ByteSpan& span : spans) {
    if (!overlap(span, hole)) {
      left.push_back(span);
      continue;
    }
    if (span.first < hole.first) left.emplace_back(span.first, hole.first);
    if (hole.second < span.second) left.emplace_back(hole.second, span.second);
  }
  spans = std::move(left);
}

// Collects spans of one conversation.
class Marking {
 public:
  Marking(const text::ChatTemplate& tmpl, const Json& messages,
          const text::Tokenizer::Specials& specials, const Json& extra)
      : turns_(tmpl, messages, specials, extra), answers_(tmpl, messages, turns_) {}

  void add_blocks() { spans_ = turns_.chat().generation; }
  void add_message(size_t k) { spans_.push_back(turns_.find(k)); }
  void add_answer(size_t k) {
    for (const ByteSpan& span : answers_.spans_of(k)) spans_.push_back(span);
  }
  void cut_answer(size_t k) {
    for (const ByteSpan& span : answers_.spans_of(k)) cut(span, spans_);
  }
  MarkedChat finish() {
    std::ranges::sort(spans_);
    return {.text = turns_.chat().text, .spans = std::move(spans_)};
  }

 private:
  const TurnSpans turns_;
  Answers answers_;
  std::vector<ByteSpan> spans_;
};

}  // namespace

std::optional<bool> wish_of(const Json& message) {
  std::optional<bool> wish;
  if (const auto weight = message.find("weight"); weight != message.end() && !weight->is_null()) {
    if (!weight->is_number() || (*weight != 0 && *weight != 1)) {
      throw FormatError("found {} as \"weight\", expected 0 (not learnt) or 1",
                        dump_python(*weight, -1, /*sort_keys=*/false, /*ensure_ascii=*/false));
    }
    wish = *weight == 1;
  }
  if (const auto train = message.find("train"); train != message.end() && !train->is_null()) {
    if (!train->is_boolean()) {
      throw FormatError("found {} as \"train\", expected true or false",
                        dump_python(*train, -1, /*sort_keys=*/false, /*ensure_ascii=*/false));
    }
    if (wish && *wish != train->get<bool>()) {
      throw FormatError("found \"weight\" and \"train\" that contradict each other, expected one");
    }
    wish = train->get<bool>();
  }
  return wish;
}

bool has_untrained(const Json& messages) {
  bool found = false;
  for (size_t k = 0; k < messages.size(); ++k) {
    found = wish_of_message(messages, k) == false || found;
  }
  return found;
}

MarkedChat render_with_assistant_spans(const text::ChatTemplate& tmpl, const Json& messages,
                                       const text::Tokenizer::Specials& specials,
                                       const Json& extra) {
  Marking marking(tmpl, messages, specials, extra);
  if (tmpl.has_generation_blocks()) marking.add_blocks();
  for (size_t k = 0; k < messages.size(); ++k) {
    const bool writes = is_assistant(messages[k]);
    const std::optional<bool> wish = wish_of_message(messages, k);
    if (tmpl.has_generation_blocks() && writes) {
      if (!wish.value_or(true)) marking.cut_answer(k);
    } else if (wish.value_or(writes)) {
      marking.add_message(k);
    }
  }
  return marking.finish();
}

MarkedChat render_with_untrained_spans(const text::ChatTemplate& tmpl, const Json& messages,
                                       const text::Tokenizer::Specials& specials,
                                       const Json& extra) {
  Marking marking(tmpl, messages, specials, extra);
  for (size_t k = 0; k < messages.size(); ++k) {
    if (wish_of_message(messages, k).value_or(true)) continue;
    if (is_assistant(messages[k])) {
      marking.add_answer(k);
    } else {
      marking.add_message(k);
    }
  }
  return marking.finish();
}

std::vector<uint8_t> mask_spans(std::span<const text::Token> tokens, const std::string& text,
                                std::span<const ByteSpan> spans) {
  std::vector<uint8_t> mask(tokens.size(), 0);
  const auto is_continuation = [&text](size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80u;
  };
  size_t first = 0;  // spans and tokens both run forward
  for (const auto& [begin, end] : spans) {
    if (begin >= end) continue;
    size_t last_character = end - 1;
    while (last_character > begin && is_continuation(last_character)) --last_character;
    while (first < tokens.size() && tokens[first].end <= begin) ++first;
    for (size_t t = first; t < tokens.size() && tokens[t].begin < end; ++t) {
      mask[t] = 1;
      if (tokens[t].begin <= last_character && last_character < tokens[t].end) break;
    }
  }
  return mask;
}

}  // namespace strata::data
