#include "strata/data/rows/pair_tokenizer.h"

#include <algorithm>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/data/rows/row_format.h"

namespace strata::data {
namespace {

constexpr const char* kTranslation = "translation";

const std::string& column_of(const Row& row, const std::string& wanted, size_t place,
                             std::string& name) {
  name = wanted;
  if (name.empty() && row.fields.size() > place) {
    name = std::next(row.fields.begin(), static_cast<std::ptrdiff_t>(place)).key();
  }
  if (!name.empty() && row.find(name) != nullptr) return read_string(row, name);
  std::vector<std::string> columns;
  for (const auto& [column, value] : row.fields.items()) columns.push_back(column);
  throw FormatError(
      "{}: found columns [{}], expected {} \"{}\"; name the columns with --text_column and "
      "--summary_column",
      row.where(), fmt::join(columns, ", "),
      wanted.empty() ? "two of text and not" : "one with the name", name);
}

const std::string& translation_of(const Row& row, const std::string& language) {
  const Json* texts = row.find(kTranslation);
  if (texts != nullptr && texts->is_object()) {
    const auto text = texts->find(language);
    if (text != texts->end() && text->is_string()) return text->get_ref<const std::string&>();
  }
  throw FormatError(
      "{}: found no text \"{}\" in \"{}\", expected an object with a text for each language; "
      "correct source_lang and target_lang",
      row.where(), language, kTranslation);
}

// Cut so that the tokens that the tokenizer adds at both ends stay.
std::vector<int32_t> encode(const std::string& text, const text::Tokenizer& tokenizer,
                            int64_t max_length, const char* setting, bool& is_cut) {
  std::vector<int32_t> ids = tokenizer.encode(text);
  const auto most = static_cast<size_t>(max_length);
  is_cut = ids.size() > most;
  if (!is_cut) return ids;
  const std::vector<int32_t> body = tokenizer.encode(text, /*add_special_tokens=*/false);
  const size_t added = ids.size() - std::min(body.size(), ids.size());
  if (added >= most) {
    throw ConfigError("{}: found {}, expected more than the {} that the tokenizer adds", setting,
                      max_length, counted(added, "token"));
  }
  size_t before = 0;
  while (before < added &&
         !std::equal(body.begin(), body.end(), ids.begin() + static_cast<std::ptrdiff_t>(before))) {
    ++before;
  }
  const auto first_cut = static_cast<std::ptrdiff_t>(most - (added - before));
  const auto end = static_cast<std::ptrdiff_t>(before + body.size());
  ids.erase(ids.begin() + first_cut, ids.begin() + end);
  return ids;
}

void require_tokens(const Row& row, const std::vector<int32_t>& ids, const char* what) {
  if (!ids.empty()) return;
  throw FormatError("{}: found a {} without any token, expected text", row.where(), what);
}

}  // namespace

TokenizedPair tokenize_pair(const Row& row, const text::Tokenizer& tokenizer,
                            const PairOptions& options) {
  std::string source, target, name;
  if (!options.source_lang.empty()) {
    source = translation_of(row, options.source_lang);
    target = translation_of(row, options.target_lang);
  } else {
    source = column_of(row, options.text_column, 0, name);
    target = column_of(row, options.summary_column, 1, name);
  }
  TokenizedPair pair;
  Example& example = pair.example;
  example.ids = encode(options.source_prefix + source, tokenizer, options.max_source_length,
                       "max_source_length", pair.source_is_cut);
  require_tokens(row, example.ids, "source");
  const std::vector<int32_t> labels =
      encode(target, tokenizer, options.max_target_length, "max_target_length", pair.target_is_cut);
  require_tokens(row, labels, "target");
  example.lengths = {static_cast<int32_t>(example.ids.size()), static_cast<int32_t>(labels.size())};
  example.labels.assign(example.ids.size(), -100);
  example.labels.insert(example.labels.end(), labels.begin(), labels.end());
  example.ids.insert(example.ids.end(), labels.begin(), labels.end());
  return pair;
}

}  // namespace strata::data
