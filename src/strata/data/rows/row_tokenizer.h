// One row to ids and labels: end-of-sequence token, chat template, label masks. Never truncates,
// never looks at other rows.
#pragma once

#include <string>
#include <vector>

#include "strata/data/batch.h"
#include "strata/data/prepare_options.h"
#include "strata/data/rows/row_format.h"
#include "strata/text/templates/chat_template.h"
#include "strata/text/tokenizer.h"

namespace strata::data {

struct TokenizedRow {
  // One document, of pairs and preferences two; of rated answers parts (rated_rows.h).
  Example example;
  bool prompt_is_split = false;  // prompt is not a prefix of prompt + completion in tokens
  bool source_is_cut = false, target_is_cut = false;  // of a pair
  // What the template leaves out, and lists of parts that it prints (hidden_texts.h).
  std::vector<std::string> hidden_texts = {}, printed_parts = {};
  // missing_answers.h; of preferences those of the chosen one: the rejected may well be none.
  std::vector<std::string> missing_answers = {};
  std::vector<std::string> labels = {};  // of a labelled row, by their names
  bool is_cut = false;                   // a labelled row, to max_length
};

// Threads: tokenize() may be called at the same time from any thread.
class RowTokenizer {
 public:
  // Keeps references to all but the format.
  // Errors: ConfigError if the rows' format, the tokenizer and the options do not go together.
  RowTokenizer(const text::Tokenizer& tokenizer, const text::ChatTemplate* tmpl,
               const PrepareOptions& options, const RowFormat& format, std::string first_row = {});

  // Errors: FormatError with file and line.
  TokenizedRow tokenize(const Row& row) const;

 private:
  TokenizedRow tokenize_text(const Row& row) const;
  TokenizedRow tokenize_messages(const Row& row) const;
  TokenizedRow tokenize_prompt_text(const Row& row) const;
  TokenizedRow tokenize_prompt_messages(const Row& row) const;
  TokenizedRow tokenize_instruction(const Row& row) const;
  // The conversation of both lists; what renders from the first alone is the prompt.
  TokenizedRow tokenize_turns(const Row& row, Json messages, Json completion) const;
  TokenizedRow tokenize_preference(const Row& row) const;
  // In the parts that rated_rows.h takes.
  TokenizedRow tokenize_rated(const Row& row) const;
  std::string prompt_text(const Row& row, const Json& prompt) const;
  // A prompt with one of its answers.
  TokenizedRow tokenize_answer(const Row& row, const Json& prompt, const Json& answer) const;
  TokenizedRow read_tokens(const Row& row) const;
  TokenizedRow tokenize_chat(const Row& row, const Json& messages, const Json& extra) const;
  std::vector<int32_t> encode(const std::string& text) const;
  void append_eos(Example& example) const;
  void mask_prompt(const std::vector<int32_t>& prompt, TokenizedRow& row) const;
  void check_ids(const Row& row, const Example& example) const;

  const text::Tokenizer& tokenizer_;
  const text::ChatTemplate* template_;
  const PrepareOptions& options_;
  RowFormat format_;
  std::string first_row_;  // of the set: where it is
  bool completion_only_;
  bool adds_specials_;
  std::string eos_;
};

}  // namespace strata::data
