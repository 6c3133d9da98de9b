#include "strata/data/rows/labelled_tokenizer.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/data/rows/labelled_row.h"
#include "strata/data/rows/pair_tokenizer.h"

namespace strata::data {
namespace {

// The first token of type 1, after which all are; 0: there is none.
int32_t begin_of_second(const std::vector<uint8_t>& types, const Row& row) {
  const auto second = std::ranges::find_if(types, [](uint8_t type) { return type != 0; });
  const bool is_sound = std::all_of(second, types.end(), [](uint8_t type) { return type == 1; });
  if (is_sound && (second != types.begin() || types.empty())) {
    return second == types.end() ? 0 : static_cast<int32_t>(second - types.begin());
  }
  throw FormatError(
      "{}: found segments {} in the tokenizer's template of pairs, expected a first text of type 0 "
      "and a second of type 1",
      row.where(), fmt::join(types, " "));
}

}  // namespace

TokenizedLabelled tokenize_labelled(const Row& row, const RowFormat& format,
                                    const text::Tokenizer& tokenizer, const PrepareOptions& options,
                                    const std::string& first_row) {
  LabelledText labelled = read_labelled(row, format, *options.labelled, first_row);
  const int64_t most = options.long_rows == "truncate" ? options.max_length : 0;
  text::Tokenizer::JoinedTexts texts =
      encode_to_length(labelled.text, labelled.second, tokenizer, most, "max_length");
  if (texts.ids.empty()) {
    throw FormatError(
        "{}: found a text without any token in \"{}\", expected one to classify; leave such rows "
        "out with --on_bad_row skip",
        row.where(), fmt::join(format.text_columns, "\", \""));
  }
  TokenizedLabelled result{
      .example = {}, .labels = std::move(labelled.labels), .is_cut = texts.is_cut};
  Example& example = result.example;
  if (tokenizer.gives_token_types()) example.second_text = begin_of_second(texts.types, row);
  example.labels = texts.ids;
  example.lengths = {static_cast<int32_t>(texts.ids.size())};
  example.ids = std::move(texts.ids);
  example.row_targets = std::move(labelled.numbers);
  return result;
}

}  // namespace strata::data
