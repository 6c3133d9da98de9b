// What was counted while a set was prepared, and the note about it that is kept with the tokens.
// Never: words of messages.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "strata/base/json.h"
#include "strata/data/files/source.h"
#include "strata/data/rows/row_format.h"

namespace strata::data {

// Rows that a message names one by one.
inline constexpr size_t kNamedRows = 3;

// Roles and columns are data in some sets (a name, an id): of so many each is counted, further ones
// together, so that neither memory nor messages grow with the set.
inline constexpr size_t kCountedNames = 64;
inline constexpr const char* kOtherNames = "(others)";
void count_name(const std::string& name, std::map<std::string, int64_t>& counts);

// A row of a file and how long it is as it is trained.
struct LongRow {
  int64_t tokens = 0;
  std::string where;  // "train.jsonl:17"

  bool operator==(const LongRow&) const = default;
};

// A label that rows have.
struct SeenLabel {
  std::string name;
  int64_t count = 0;  // rows
  std::string first;  // where the first of them is

  bool operator==(const SeenLabel&) const = default;
};

// Texts of conversations that the chat template does not show, or not as texts, or that are
// missing.
struct HiddenTexts {
  int64_t count = 0;
  std::vector<std::string> first;  // where the first of them are, at most kNamedRows

  bool operator==(const HiddenTexts&) const = default;
};

struct DatasetStats {
  int64_t num_sources = 0;  // rows that were read, bad ones too
  int64_t num_dropped = 0;  // rows left out because truncation left no trained token
  int64_t num_long = 0;     // rows of more than max_length tokens (without packing that splits)
  BadRows bad_rows;         // rows that could not be used (skip_bad_rows)
  int64_t num_tokens = 0;
  // Trained next-token predictions: the sum over rows of what Trainer adds to num_items_in_batch.
  int64_t num_targets = 0;
  // Rows whose prompt does not tokenize to a prefix of prompt + completion: training sees another
  // prompt end than inference will. Worth a warning.
  int64_t num_split_prompts = 0;
  int64_t num_desirable = 0, num_undesirable = 0;    // rated rows
  int64_t num_cut_sources = 0, num_cut_targets = 0;  // of pairs: max_source_length, ...
  std::map<std::string, int64_t> roles = {};         // how many messages of the rows have a role
  int64_t num_text_fields = 0;  // rows that are made of the column dataset_text_field, or end there
  // How many rows have a value in a column that nothing is made of.
  std::map<std::string, int64_t> unused_columns = {};
  // The longest rows as they are trained (cut or split where that is the rule), longest first.
  std::vector<LongRow> longest_rows = {};
  std::map<std::string, HiddenTexts> hidden_texts = {};     // by the names of rows/hidden_texts.h
  std::map<std::string, HiddenTexts> printed_parts = {};    // the same
  std::map<std::string, HiddenTexts> missing_answers = {};  // by those of rows/missing_answers.h

  // Of labelled rows: what their labels are, and those by name in the order in which they came.
  LabelKind label_kind = LabelKind::kNone;
  std::vector<SeenLabel> labels = {};
  // The names of all classes in the order of their numbers, where the first row's file has them.
  std::vector<std::string> class_names = {};

  std::vector<std::string> files = {};  // that the rows are of, each once, in the order of reading

  // The same files have other names now: those of the places and of the first bad row follow.
  // Without effect if they are not as many.
  void rename_files(std::vector<std::string> names);
  // A row of so many tokens is among those that are trained. Of equal ones the first is kept.
  void note_length(int64_t tokens, const RowPlace& place);
  // The next row lacks these texts, has these lists of parts printed, misses these answers.
  void note_hidden_texts(const std::vector<std::string>& names, const RowPlace& place);
  void note_printed_parts(const std::vector<std::string>& names, const RowPlace& place);
  void note_missing_answers(const std::vector<std::string>& names, const RowPlace& place);
};

Json to_json(const DatasetStats& stats);
// Errors: nlohmann's for a document that lacks something.
DatasetStats stats_from_json(const Json& json);

}  // namespace strata::data
