// What a prepared set holds, counted: lengths, trained tokens, and signs of common mistakes. Never
// changes a row, never prints.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/data/files/source.h"
#include "strata/data/store/token_store.h"
#include "strata/text/tokenizer.h"

namespace strata::data {

struct Inspection {
  int64_t rows = 0;
  int64_t documents = 0;  // without empty ones, and without sources
  int64_t tokens = 0;
  int64_t trained_tokens = 0;         // labels that are not -100
  int64_t shortest = 0, longest = 0;  // tokens of a row
  // Rows by length: bar i counts lengths from i * bar_tokens to (i + 1) * bar_tokens - 1.
  int64_t bar_tokens = 1;
  std::vector<int64_t> bars;
  // Documents with a sign of a mistake.
  int64_t masked = 0;      // no token is trained
  int64_t no_end = 0;      // what is trained does not end with the end token or another special one
  int64_t two_bos = 0;     // begins with the BOS token twice
  int64_t duplicates = 0;  // the same ids and labels as an earlier one
  // Of preferences and pairs, where a document may well come again in another row: rows of both
  // documents that came before.
  int64_t duplicate_rows = 0;
};

inline constexpr int64_t kMaxBars = 20;

// What the documents of a row are: for themselves, a chosen and a rejected answer
// (rows/preference_tokenizer.h), or a source, which does not train, and its target
// (rows/pair_tokenizer.h), or a rated answer and, where there is one, the answer of another row
// (rated_rows.h), which is not learnt, or a text with a label, of which no token is learnt
// (rows/labelled_row.h).
enum class RowsOf : uint8_t { kDocuments, kPreferences, kPairs, kRated, kLabelled };

Inspection inspect(const TokenStore& store, const text::Tokenizer& tokenizer,
                   RowsOf rows = RowsOf::kDocuments);

// Adds how often each role occurs in the rows' messages, prompts and completions. Requires: they
// are conversations; a column that a row is not made of counts as well.
void count_roles(const std::vector<Row>& rows, std::map<std::string, int64_t>& roles);

// The same of preferences that are conversations; a text beside messages counts as one.
void count_preference_roles(const std::vector<Row>& rows, std::map<std::string, int64_t>& roles);

// Tokens that a padding collator would add to these batches, as a part of all it would hand on.
// `batches`: indices of rows. Of preferences each document is padded, of rated rows the answer.
double padding_part(const TokenStore& store, const std::vector<std::vector<int64_t>>& batches,
                    RowsOf kind = RowsOf::kDocuments);

// One warning a line about what is probably wrong. `roles`: of count_roles; `template_source`:
// empty if no template is used.
std::vector<std::string> find_mistakes(const Inspection& inspection,
                                       const std::map<std::string, int64_t>& roles,
                                       const std::string& template_source);

}  // namespace strata::data
