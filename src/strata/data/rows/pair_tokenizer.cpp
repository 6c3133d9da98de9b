#include "strata/data/rows/pair_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "strata/base/counted.h"
#include "strata/base/error.h"

namespace strata::data {
namespace {

constexpr const char* kTranslation = "translation";

struct PublishedSet {
  std::string_view name, source, target;
};

// As run_summarization.py names them.
constexpr PublishedSet kPublishedSets[] = {
    {"amazon_reviews_multi", "review_body", "review_title"},
    {"big_patent", "description", "abstract"},
    {"cnn_dailymail", "article", "highlights"},
    {"orange_sum", "text", "summary"},
    {"pn_summary", "article", "summary"},
    {"psc", "extract_text", "summary_text"},
    {"samsum", "dialogue", "summary"},
    {"thaisum", "body", "summary"},
    {"xglue", "news_body", "news_title"},
    {"xsum", "document", "summary"},
    {"wiki_summary", "article", "highlights"},
};

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

std::vector<std::string> columns_of(const Row& row) {
  std::vector<std::string> names;
  for (const auto& [column, value] : row.fields.items()) names.push_back(column);
  return names;
}

// The name of a column that no setting names: that of its place.
std::string column_at(const Row& row, size_t place) {
  refuse_other_row(row);
  const std::vector<std::string> columns = columns_of(row);
  if (place >= columns.size()) {
    throw FormatError(
        "{}: found columns [{}], expected two of text; name the columns with --text_column and "
        "--summary_column",
        row.where(), fmt::join(columns, ", "));
  }
  const Json* text = row.find(columns[place]);
  if (text != nullptr && text->is_string()) return columns[place];
  throw FormatError(
      "{}: found {} in \"{}\", column {} of [{}], expected text; name the columns of source and "
      "target with --text_column and --summary_column",
      row.where(), type_of(text), columns[place], place + 1, fmt::join(columns, ", "));
}

const std::string& text_in(const Row& row, const std::string& column) {
  if (row.find(column) != nullptr) return read_string(row, column);
  throw FormatError(
      "{}: found columns [{}], expected one with the name \"{}\"; name the columns with "
      "--text_column and --summary_column",
      row.where(), fmt::join(columns_of(row), ", "), column);
}

// By the language's code, or by what stands before its country or script ("en" of "en_XX"), as
// run_translation.py looks for it.
const std::string& translation_of(const Row& row, const std::string& language) {
  const Json* texts = row.find(kTranslation);
  if (texts != nullptr && texts->is_object()) {
    auto text = texts->find(language);
    if (text == texts->end()) text = texts->find(language.substr(0, language.find('_')));
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

text::Tokenizer::JoinedTexts require_room(text::Tokenizer::JoinedTexts texts, int64_t max_length,
                                          const char* setting, const char* where) {
  if (!texts.is_cut || texts.num_added < max_length) return texts;
  throw ConfigError("{}: found {}, expected more than the {} that the tokenizer adds{}", setting,
                    max_length, counted(texts.num_added, "token"), where);
}

}  // namespace

text::Tokenizer::JoinedTexts encode_to_length(const std::string& text,
                                              const std::optional<std::string>& second,
                                              const text::Tokenizer& tokenizer, int64_t max_length,
                                              const char* setting) {
  return require_room(tokenizer.encode_texts(text, second, max_length), max_length, setting,
                      second ? " to a pair" : "");
}

void name_published_columns(const std::string& set, const Row& row, PairOptions& options) {
  const std::filesystem::path path(set);
  const std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
  const auto published = std::ranges::find(kPublishedSets, name, &PublishedSet::name);
  if (published == std::end(kPublishedSets)) return;
  // One of them beside a column by its place might be the same one twice.
  const auto fits = [&](const std::string& named, std::string_view known) {
    const Json* text = row.find(std::string(known));
    return !named.empty() || (text != nullptr && text->is_string());
  };
  if (!fits(options.text_column, published->source) ||
      !fits(options.summary_column, published->target)) {
    return;
  }
  if (options.text_column.empty()) options.text_column = published->source;
  if (options.summary_column.empty()) options.summary_column = published->target;
}

RowFormat detect_pair(const Row& row, const PairOptions& options) {
  RowFormat format{.kind = RowKind::kPair};
  if (!options.source_lang.empty()) return format;
  const auto name = [&](const std::string& named, size_t place) {
    return named.empty() ? column_at(row, place) : named;
  };
  format.text_columns = {name(options.text_column, 0)};
  format.pair_columns = {name(options.summary_column, 1)};
  return format;
}

TokenizedPair tokenize_pair(const Row& row, const RowFormat& format,
                            const text::Tokenizer& tokenizer, const PairOptions& options) {
  std::string source, target;
  if (!options.source_lang.empty()) {
    source = translation_of(row, options.source_lang);
    target = translation_of(row, options.target_lang);
  } else {
    source = text_in(row, format.text_columns.front());
    target = text_in(row, format.pair_columns.front());
  }
  TokenizedPair pair;
  Example& example = pair.example;
  auto read = encode_to_length(options.source_prefix + source, std::nullopt, tokenizer,
                               options.max_source_length, "max_source_length");
  const auto told = require_room(tokenizer.encode_target(target, options.max_target_length),
                                 options.max_target_length, "max_target_length", "");
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
