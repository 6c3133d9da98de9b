// Two answers to one prompt as two documents of token ids, with the reference's (TRL's DPOTrainer)
// border between prompt and answer. Never renders, never looks at other rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/data/batch.h"

namespace strata::data {

// The names are DPOConfig's; max_length is that of PrepareOptions.
struct PreferenceOptions {
  // Which end of a document of more than max_length tokens stays: keep_start, keep_end.
  std::string truncation_mode = "keep_start";
  // Both documents get a reward as a whole (RewardTrainer): no border between prompt and answer is
  // looked for, and a pair with a document that is too long is left out.
  bool are_rewarded = false;
  // The prompt is trained, too, where the better answer follows (ORPOTrainer).
  bool learns_prompt = false;
};

struct JoinedAnswers {
  Example pair;          // of two documents: [prompt + chosen][prompt + rejected]
  size_t prompt_tokens;  // of each document
  bool prompt_is_split;  // they are fewer than the prompt alone has
};
// The prompt is trained in neither document; it ends where the shorter of the two beginnings ends
// that they share with the `prompt` alone. Labels that are -100 after it stay so.
JoinedAnswers join_answers(const std::vector<int32_t>& prompt, Example chosen, Example rejected);

// Makes the prompt's labels before the better answer what they were (`learnt`: those of its
// document). Training finds by the other document where the answers begin. FormatError (`where`)
// unless that one is trained from there on.
void train_prompt(const std::string& where, const std::vector<int32_t>& learnt,
                  JoinedAnswers& joined);

// join_answers() of one document. Returns how many tokens of the prompt it begins with.
int32_t mask_shared(const std::vector<int32_t>& prompt, Example& document, bool& prompt_is_split);

// Cuts each document to max_length tokens. Requires: max_length > 0.
void truncate_answers(Example& pair, int64_t max_length, const std::string& truncation_mode);

// The first document that has no trained token after its first, so that it has no likelihood;
// their number: all have one. `learns_prompt`: what train_prompt() made of it is no answer.
size_t find_untrained_answer(const ExampleView& pair, bool learns_prompt = false);

}  // namespace strata::data
