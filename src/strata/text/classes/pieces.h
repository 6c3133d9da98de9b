// What the tokenizer classes of transformers 5.23 make of the pieces of a SentencePiece model that
// is there without tokenizer.json: other first pieces, more at the end. A table; reads no files and
// knows no pipelines (class_rules).
#pragma once

#include <string>
#include <vector>

#include "strata/base/json.h"

namespace strata::text {

struct ScoredPiece {
  std::string text;
  double score = 0;
};

struct PieceRule;

// The rule of a class, that of the file as it is for a class that transformers does not know.
// FormatError for a class that does not read such a model, or not as its weights need it.
const PieceRule& find_piece_rule(const std::string& tokenizer_class, const std::string& folder);

// Whether the pipeline comes from the model file, and whether the class makes a BPE model of the
// pieces, which the file has for one or not.
bool has_plain_pipeline(const PieceRule& rule);
bool makes_bpe(const PieceRule& rule, bool file_is_bpe);

// The vocabulary by ids. `settings`: tokenizer_config.json, which may name other tokens; may be
// null.
std::vector<ScoredPiece> pieces_of_class(const PieceRule& rule, const Json& settings,
                                         const std::vector<ScoredPiece>& of_file);

// The additional tokens, of the file's control and user-defined pieces and the class's own.
Json additional_tokens_of_class(const PieceRule& rule, Json of_file, const Json& of_class);

}  // namespace strata::text
