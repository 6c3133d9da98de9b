#include "strata/data/assistant_mask.h"

#include <algorithm>

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

// The blocks that the assistant's message k wrote. With one block for each answer they are in
// order.
class Blocks {
 public:
  Blocks(const text::ChatTemplate& tmpl, const Json& messages, const TurnSpans& turns)
      : turns_(turns), exist_(tmpl.has_generation_blocks()) {
    if (!exist_) return;
    for (size_t k = 0; k < messages.size(); ++k) {
      if (is_assistant(messages[k])) answers_.push_back(k);
    }
    is_paired_ = answers_.size() == turns.chat().generation.size();
  }

  std::vector<ByteSpan> of(size_t k) const {
    const auto& all = turns_.chat().generation;
    if (!exist_) return one(turns_.find(k));
    if (is_paired_) {
      const auto place = std::ranges::find(answers_, k) - answers_.begin();
      return one(all[static_cast<size_t>(place)]);
    }
    const auto [begin, end] = turns_.find(k);
    std::vector<ByteSpan> found;
    for (const ByteSpan& block : all) {
      if (block.first < end && begin < block.second) found.push_back(block);
    }
    return found;
  }

 private:
  static std::vector<ByteSpan> one(const ByteSpan& span) {
    if (span.first >= span.second) return {};
    return {span};
  }

  const TurnSpans& turns_;
  const bool exist_;
  bool is_paired_ = false;
  std::vector<size_t> answers_;
};

}  // namespace

std::optional<bool> wish_of(const Json& message) {
  std::optional<bool> wish;
  if (const auto weight = message.find("weight"); weight != message.end() && !weight->is_null()) {
    if (!weight->is_number() || (*weight != 0 && *weight != 1)) {
      throw FormatError("found {} as \"weight\", expected 0 (not learnt) or 1", weight->dump());
    }
    wish = *weight == 1;
  }
  if (const auto train = message.find("train"); train != message.end() && !train->is_null()) {
    if (!train->is_boolean()) {
      throw FormatError("found {} as \"train\", expected true or false", train->dump());
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
  const TurnSpans turns(tmpl, messages, specials, extra);
  const Blocks blocks(tmpl, messages, turns);
  MarkedChat result{.text = turns.chat().text, .spans = {}};
  if (tmpl.has_generation_blocks()) result.spans = turns.chat().generation;
  for (size_t k = 0; k < messages.size(); ++k) {
    const bool writes = is_assistant(messages[k]);
    const std::optional<bool> wish = wish_of_message(messages, k);
    if (tmpl.has_generation_blocks() && writes) {
      if (wish.value_or(true)) continue;
      for (const ByteSpan& block : blocks.of(k)) std::erase(result.spans, block);
    } else if (wish.value_or(writes)) {
      for (const ByteSpan& span : writes ? blocks.of(k) : std::vector{turns.find(k)}) {
        result.spans.push_back(span);
      }
    }
  }
  std::ranges::sort(result.spans);
  return result;
}

MarkedChat render_with_untrained_spans(const text::ChatTemplate& tmpl, const Json& messages,
                                       const text::Tokenizer::Specials& specials,
                                       const Json& extra) {
  const TurnSpans turns(tmpl, messages, specials, extra);
  const Blocks blocks(tmpl, messages, turns);
  MarkedChat result{.text = turns.chat().text, .spans = {}};
  for (size_t k = 0; k < messages.size(); ++k) {
    if (wish_of_message(messages, k).value_or(true)) continue;
    if (!is_assistant(messages[k])) {
      result.spans.push_back(turns.find(k));
      continue;
    }
    for (const ByteSpan& span : blocks.of(k)) result.spans.push_back(span);
  }
  std::ranges::sort(result.spans);
  return result;
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
