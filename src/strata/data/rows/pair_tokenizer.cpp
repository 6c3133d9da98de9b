#include "strata/data/rows/pair_tokenizer.h"

#include <utility>

#include "strata/base/counted.h"
#include "strata/base/error.h"
#include "strata/data/rows/row_format.h"

namespace strata::data {
namespace {

constexpr const char* kTranslation = "translation";

// What a row without two columns of text was meant for.
void refuse_other_row(const Row& row) {
  if (const Json* texts = row.find(kTranslation); texts != nullptr && texts->is_object()) {
    std::vector<std::string> languages;
    for (const auto& [language, text] : texts->items()) languages.push_back(language);
    throw FormatError(
        "{}: found a column \"{}\" with [{}], expected the languages to be named; add "
        "--source_lang "
        "and --target_lang",
        row.where(), kTranslation, fmt::join(languages, ", "));
  }
  for (const char* column : {"messages", "conversations"}) {
    const Json* messages = row.find(column);
    if (messages == nullptr || !messages->is_array()) continue;
    throw FormatError(
        "{}: found a conversation (\"{}\"), expected columns with a source and a target text; "
        "strata sft trains on conversations, --text_column and --summary_column name two columns",
        row.where(), column);
  }
}

const std::string& column_of(const Row& row, const std::string& wanted, size_t place,
                             std::string& name) {
  const auto columns = [&] {
    std::vector<std::string> names;
    for (const auto& [column, value] : row.fields.items()) names.push_back(column);
    return names;
  };
  name = wanted;
  if (name.empty()) {
    refuse_other_row(row);
    if (row.fields.size() > place) name = columns()[place];
  }
  const Json* text = name.empty() ? nullptr : row.find(name);
  if (text != nullptr && (text->is_string() || !wanted.empty())) return read_string(row, name);
  if (text != nullptr) {
    throw FormatError(
        "{}: found {} in \"{}\", column {} of [{}], expected text; name the columns of source and "
        "target with --text_column and --summary_column",
        row.where(), type_of(text), name, place + 1, fmt::join(columns(), ", "));
  }
  throw FormatError(
      "{}: found columns [{}], expected {} \"{}\"; name the columns with --text_column and "
      "--summary_column",
      row.where(), fmt::join(columns(), ", "),
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

void require_tokens(const Row& row, const std::vector<int32_t>& ids, const char* what) {
  if (!ids.empty()) return;
  throw FormatError("{}: found a {} without any token, expected text", row.where(), what);
}

}  // namespace

text::Tokenizer::JoinedTexts encode_to_length(const std::string& text,
                                              const std::optional<std::string>& second,
                                              const text::Tokenizer& tokenizer, int64_t max_length,
                                              const char* setting) {
  text::Tokenizer::JoinedTexts texts = tokenizer.encode_texts(text, second, max_length);
  if (!texts.is_cut || texts.num_added < max_length) return texts;
  throw ConfigError("{}: found {}, expected more than the {} that the tokenizer adds{}", setting,
                    max_length, counted(texts.num_added, "token"), second ? " to a pair" : "");
}

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
  auto read = encode_to_length(options.source_prefix + source, std::nullopt, tokenizer,
                               options.max_source_length, "max_source_length");
  const auto told = encode_to_length(target, std::nullopt, tokenizer, options.max_target_length,
                                     "max_target_length");
  pair.source_is_cut = read.is_cut;
  pair.target_is_cut = told.is_cut;
  example.ids = std::move(read.ids);
  require_tokens(row, example.ids, "source");
  const std::vector<int32_t>& labels = told.ids;
  require_tokens(row, labels, "target");
  example.lengths = {static_cast<int32_t>(example.ids.size()), static_cast<int32_t>(labels.size())};
  example.labels.assign(example.ids.size(), -100);
  example.labels.insert(example.labels.end(), labels.begin(), labels.end());
  example.ids.insert(example.ids.end(), labels.begin(), labels.end());
  return pair;
}

}  // namespace strata::data
