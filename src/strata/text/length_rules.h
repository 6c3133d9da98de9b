// How long texts may be: the sections "truncation" and "padding" of tokenizer.json, for one text at
// a time, and how a pair of texts shares its room. Never encodes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strata/base/json.h"
#include "strata/text/tokenizer.h"

namespace strata::text {

struct Truncation {
  int64_t max_length = 0;  // tokens, with those that the post-processor adds
  bool from_left = false;
};

struct Padding {
  int64_t length = 0;    // 0: that of the text itself (the longest of a batch of one)
  int64_t multiple = 1;  // the length is rounded up to it
  int32_t id = 0;
  bool on_left = false;
};

struct LengthRules {
  std::optional<Truncation> truncation;
  std::optional<Padding> padding;
};

// Errors: FormatError that names the field, also for a strategy that needs two texts.
LengthRules read_length_rules(const Json& document, const std::string& subject);

// model_max_length of tokenizer_config.json (null: no such file): the longest text that the model
// was made for. Absent where it is missing, null, or one of the huge numbers that stand for
// "unknown". Errors: FormatError for what is no positive number.
std::optional<int64_t> read_model_max_length(const Json& tokenizer_config,
                                             const std::string& folder);

// Whether texts lose their beginnings: truncation_side of tokenizer_config.json (null: no such
// file), else what tokenizer.json says. Errors: FormatError for another side than left and right.
bool truncates_from_left(const Json& tokenizer_config, const Json& document,
                         const std::string& folder);

// Of two texts of so many tokens, how many of each stay where `room` of them fit: the longer one
// gives way until both are alike ("longest_first" of the tokenizers library).
std::pair<size_t, size_t> share_room(size_t first, size_t second, size_t room);

// Requires: size <= tokens.size().
void cut_to(size_t size, bool from_left, std::vector<Token>& tokens);

// Leaves what fits beside `num_added` tokens of the post-processor. Errors: FormatError when not
// even those fit.
void truncate(const LengthRules& rules, int64_t num_added, const std::string& subject,
              std::vector<Token>& tokens);

// Adds the padding tokens, which cover [0, 0) of the text, and returns 1 for every other token.
std::vector<uint8_t> pad(const LengthRules& rules, std::vector<Token>& tokens);

}  // namespace strata::text
