// Finds the files of a split and reads their rows. Knows where every row came from. Never
// interprets columns, never tokenizes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "strata/base/json.h"

namespace strata::data {

// Where a row is, without its fields.
struct RowPlace {
  std::shared_ptr<const std::string> file;
  int64_t line = 0;
  int64_t number = 0;

  std::string text() const;
};

// Columns of numbers that stand for classes, and of each the classes' names: number i is name i.
using ClassNames = std::map<std::string, std::vector<std::string>>;

// One row as it stands in its file.
struct Row {
  Json fields;                              // always an object
  std::shared_ptr<const std::string> file;  // shared by the rows of a file; null: not from a file
  int64_t line = 0;    // from 1: where the row begins; in parquet and arrow files the row's number
  int64_t number = 0;  // from 1, of a row that shares its line with others of a JSON array, else 0
  std::shared_ptr<const ClassNames> class_names = {};  // that its file or card has; null: none

  // "train.jsonl:17", how messages name the row; "train.json:1 (row 17)" with a number.
  std::string where() const;
  RowPlace place() const { return {file, line, number}; }
  // The column's value; null if it is absent or JSON null (the reference fills absent columns with
  // null when it reads a file, so both mean the same).
  const Json* find(const std::string& column) const;
};

// Rows that on_bad_row=skip left out.
struct BadRows {
  int64_t count = 0;
  std::string first;  // what was wrong with the first of them

  void add(const BadRows& other) {
    if (count == 0) first = other.first;
    count += other.count;
  }
};

// Rows that follow each other, as many as are read in one go.
struct RowBatch {
  std::vector<Row> rows;
  double part = 0;  // how much of all the bytes has been read after it, from 0 to 1
};

// Takes the next rows. False: no more are wanted.
using TakeRows = std::function<bool(RowBatch)>;

struct ReadResult {
  std::vector<std::filesystem::path> files;  // in reading order
  int64_t num_rows = 0;                      // up to the last that was handed out
  BadRows bad_rows;
  // Columns that no row holds, and why, with the number of rows: "image (binary)".
  std::map<std::string, int64_t> left_out = {};
};

struct Split {
  std::vector<Row> rows;
  std::vector<std::filesystem::path> files;  // in reading order
  BadRows bad_rows;
};

struct LoadOptions {
  bool skip_bad_rows = false;  // count rows that cannot be read instead of throwing
  // Columns under other names, all at once: {"messages", "dialog"} makes "messages" of the file's
  // "dialog".
  std::vector<std::pair<std::string, std::string>> columns = {};
  std::string configuration = {};  // of the data set (dataset_config), see split_files.h
  // Names of classes in the data set's card count, as for `datasets` before those of the files.
  bool reads_card_classes = false;
};

// Reads one split in batches, so that memory holds a part of a file however large it is.
// A file, or the files of a pattern (data/*.jsonl), are the split "train". Formats by extension:
// .jsonl and .json (one object per line, or one array of objects), .csv, .tsv, .txt (a row per
// line), each also with .gz or .zst after it; .parquet; .arrow.
// Of a folder whose README.md lists configurations, the files of the chosen one. Of another folder,
// the first that exists of: SPLIT.jsonl (or another format), the full set of
// SPLIT-00000-of-000NN.parquet, data/SPLIT*.parquet, SPLIT/*.parquet, what the words in
// the names of files and folders say (folder_patterns.h). A folder that
// Dataset.save_to_disk wrote is one split, that of DatasetDict.save_to_disk has its splits.
// Errors: ConfigError for a split that is not there (lists those that are) and for a column of
// LoadOptions that the first row lacks; FormatError with file and line for a row that cannot be
// read and for an empty split; IoError for what the operating system refuses. Rows before the error
// have been handed out.
// Rows before number `first` (from 0) are not handed out, and looked into only where bad rows,
// which count as none, are left out.
ReadResult read_split(const std::filesystem::path& file_or_folder, const std::string& split,
                      const LoadOptions& options, const TakeRows& take, int64_t first = 0);

// What the card of a folder says of its columns (read_card_classes), where the options want it.
ClassNames card_classes(const std::filesystem::path& file_or_folder, const LoadOptions& options);

// The number of rows that read_split hands out, at most `limit`. Errors in rows that it does not
// look into are told when they are read.
int64_t count_rows(const std::filesystem::path& file_or_folder, const std::string& split,
                   const LoadOptions& options, int64_t limit);

// The whole split in memory.
Split load_split(const std::filesystem::path& file_or_folder, const std::string& split,
                 const LoadOptions& options = {});

// The names of the splits that load_split would find, sorted. A file has the one split "train".
// Errors: ConfigError for a configuration that is not there or has to be chosen.
std::vector<std::string> list_splits(const std::filesystem::path& file_or_folder,
                                     const std::string& configuration = {});

}  // namespace strata::data
