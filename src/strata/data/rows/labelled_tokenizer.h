// A labelled row to the document that is classified: the ids of its text, or of both with their
// border. Never batches, never looks at other rows.
#pragma once

#include <string>
#include <vector>

#include "strata/data/batch.h"
#include "strata/data/prepare_options.h"
#include "strata/text/tokenizer.h"

namespace strata::data {

struct TokenizedLabelled {
  Example example;
  std::vector<std::string> labels;  // by their names
  bool is_cut = false;              // to max_length
};

// `format`: of the set's first row, which is at `first_row`. Errors: FormatError with file and
// line; ConfigError for a max_length that the tokens which the tokenizer adds fill. Threads: any
// number at the same time.
TokenizedLabelled tokenize_labelled(const Row& row, const RowFormat& format,
                                    const text::Tokenizer& tokenizer, const PrepareOptions& options,
                                    const std::string& first_row);

}  // namespace strata::data
