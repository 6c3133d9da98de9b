// A row of a source text and a target text to the ids of both, as the reference's
// sequence-to-sequence scripts (run_summarization.py, run_translation.py) make them. Never batches,
// never looks at other rows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strata/data/batch.h"
#include "strata/data/files/source.h"
#include "strata/data/rows/row_format.h"
#include "strata/text/tokenizer.h"

namespace strata::data {

// The names are the scripts'.
struct PairOptions {
  // Columns; empty: the first and the second of a set's first row, by their names in all others.
  std::string text_column, summary_column;
  // Both given: the row's column "translation" holds an object with a text for each.
  std::string source_lang, target_lang;
  std::string lang;           // of both, for the tokenizer, which was told
  std::string source_prefix;  // before every source text
  // With the tokens that the tokenizer adds; what is longer loses its end, but not those.
  int64_t max_source_length = 1024;
  int64_t max_target_length = 128;
};

struct TokenizedPair {
  Example example;
  bool source_is_cut = false, target_is_cut = false;
};

// Names for the columns that `options` leaves to a set which run_summarization.py knows by its name
// (`samsum`, also in a folder or as org/samsum), where the row has them.
void name_published_columns(const std::string& set, const Row& row, PairOptions& options);

// Which columns hold the texts, in all rows of the set that this one is the first of. Errors:
// FormatError with file and line for a row that has no texts in these places.
RowFormat detect_pair(const Row& row, const PairOptions& options);

// The source's document and the target's: ids of both one after the other, labels of the target.
// Errors: FormatError with file and line for a row without the two texts, or whose source or target
// is empty (a tokenizer that adds no end token); ConfigError for a length that the added tokens
// fill.
// Threads: any number at the same time.
TokenizedPair tokenize_pair(const Row& row, const RowFormat& format,
                            const text::Tokenizer& tokenizer, const PairOptions& options);

// A text, or two of them, cut to max_length (0: not) so that the tokens that the tokenizer adds
// stay. Errors: ConfigError, which names the setting, for a length that those fill.
text::Tokenizer::JoinedTexts encode_to_length(const std::string& text,
                                              const std::optional<std::string>& second,
                                              const text::Tokenizer& tokenizer, int64_t max_length,
                                              const char* setting);

}  // namespace strata::data
