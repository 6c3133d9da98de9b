#include "strata/data/rows/preference_tokenizer.h"

#include <algorithm>

#include "strata/base/error.h"
#include "strata/base/labels.h"

namespace strata::data {
namespace {

std::ptrdiff_t shared_beginning(const std::vector<int32_t>& prompt,
                                const std::vector<int32_t>& document) {
  return std::mismatch(prompt.begin(), prompt.end(), document.begin(), document.end()).first -
         prompt.begin();
}

}  // namespace

JoinedAnswers join_answers(const std::vector<int32_t>& prompt, Example chosen, Example rejected) {
  const std::ptrdiff_t length =
      std::min(shared_beginning(prompt, chosen.ids), shared_beginning(prompt, rejected.ids));
  for (Example* document : {&chosen, &rejected}) {
    std::fill_n(document->labels.begin(), length, kNotTrained);
  }
  Example pair = std::move(chosen);
  pair.lengths = {static_cast<int32_t>(pair.ids.size()), static_cast<int32_t>(rejected.ids.size())};
  pair.ids.insert(pair.ids.end(), rejected.ids.begin(), rejected.ids.end());
  pair.labels.insert(pair.labels.end(), rejected.labels.begin(), rejected.labels.end());
  return {std::move(pair), static_cast<size_t>(length),
          length < static_cast<std::ptrdiff_t>(prompt.size())};
}

void train_prompt(const std::string& where, const std::vector<int32_t>& learnt,
                  JoinedAnswers& joined) {
  std::vector<int32_t>& labels = joined.pair.labels;
  const auto prompt = static_cast<std::ptrdiff_t>(joined.prompt_tokens);
  if (*(labels.begin() + joined.pair.lengths[0] + prompt) == kNotTrained) {
    throw FormatError(
        "{}: found a \"rejected\" that begins with a message that is not learnt (\"weight\" and "
        "\"train\" say no), expected one that is; put that message into the prompt",
        where);
  }
  std::copy_n(learnt.begin(), prompt, labels.begin());
}

int32_t mask_shared(const std::vector<int32_t>& prompt, Example& document, bool& prompt_is_split) {
  const std::ptrdiff_t length = shared_beginning(prompt, document.ids);
  prompt_is_split = length < static_cast<std::ptrdiff_t>(prompt.size());
  std::fill_n(document.labels.begin(), length, kNotTrained);
  return static_cast<int32_t>(length);
}

void truncate_answers(Example& pair, int64_t max_length, const std::string& truncation_mode) {
  const bool keeps_end = truncation_mode == "keep_end";
  std::ptrdiff_t begin = 0;
  for (int32_t& length : pair.lengths) {
    const auto kept = static_cast<std::ptrdiff_t>(std::min<int64_t>(length, max_length));
    const std::ptrdiff_t first = keeps_end ? begin : begin + kept;
    for (auto* column : {&pair.ids, &pair.labels}) {
      column->erase(column->begin() + first, column->begin() + first + length - kept);
    }
    length = static_cast<int32_t>(kept);
    begin += kept;
  }
  pair.ids.shrink_to_fit();
  pair.labels.shrink_to_fit();
}

size_t find_untrained_answer(const ExampleView& pair, bool learns_prompt) {
  const auto is_trained = [](int32_t label) { return label != kNotTrained; };
  size_t prompt = 0;
  if (learns_prompt) {
    const auto other = pair.labels.subspan(static_cast<size_t>(pair.lengths[0]));
    prompt = static_cast<size_t>(std::ranges::find_if(other, is_trained) - other.begin());
  }
  size_t begin = 0;
  for (size_t i = 0; i < pair.lengths.size(); ++i) {
    const auto length = static_cast<size_t>(pair.lengths[i]);
    const size_t skipped = std::min(std::max<size_t>(prompt, 1), length);
    const auto answer = pair.labels.subspan(begin, length).subspan(skipped);
    if (std::ranges::none_of(answer, is_trained)) return i;
    begin += length;
  }
  return pair.lengths.size();
}

}  // namespace strata::data
