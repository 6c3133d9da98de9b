// Which token of a document a head reads that looks at whole ones. Owns: nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "strata/data/batch.h"
#include "strata/text/tokenizer.h"

namespace strata::train {

// The last token of each document that is not padding, as transformers finds it; else the
// first.
std::vector<int64_t> last_tokens(const data::MicroBatch& batch, int64_t pad_id);

// The first token of each document.
std::vector<int64_t> first_tokens(const data::MicroBatch& batch);

// ConfigError for a tokenizer without a token for padding: texts end before it.
int64_t require_pad_id(const text::Tokenizer& tokenizer);

}  // namespace strata::train
