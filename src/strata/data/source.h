// Finds the files of a split and reads their rows: JSON lines and JSON arrays. Knows where every
// row came from. Never interprets columns, never tokenizes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "strata/base/json.h"

namespace strata::data {

// One row as it stands in its file.
struct Row {
  Json fields;                              // always an object
  std::shared_ptr<const std::string> file;  // shared by the rows of a file; null: not from a file
  int64_t line = 0;                         // from 1: where the row begins

  // "train.jsonl:17", how messages name the row.
  std::string where() const;
  // The column's value; null if it is absent or JSON null (the reference fills absent columns with
  // null when it reads a file, so both mean the same).
  const Json* find(const std::string& column) const;
};

struct Split {
  std::vector<Row> rows;
  std::vector<std::filesystem::path> files;  // in reading order
};

// Reads one split.
// A file is the split "train" (.jsonl: one object per line; .json: that, or an array of objects).
// Of a folder, the first that exists of: SPLIT.jsonl or SPLIT.json, the full set of
// SPLIT-00000-of-000NN.jsonl, data/SPLIT*.jsonl, SPLIT/*.jsonl (each also with .json).
// Errors: ConfigError for a split that is not there (lists those that are) and for parquet or arrow
// files; FormatError with file and line for a row that is not a JSON object and for an empty split;
// IoError for what the operating system refuses.
Split load_split(const std::filesystem::path& file_or_folder, const std::string& split);

// The names of the splits that load_split would find, sorted. A file has the one split "train".
std::vector<std::string> list_splits(const std::filesystem::path& file_or_folder);

}  // namespace strata::data
