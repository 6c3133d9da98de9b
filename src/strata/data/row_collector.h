// Takes the rows that readers find in files, and decides what an unreadable one does. Never reads
// files, never interprets columns.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "strata/data/source.h"

namespace strata::data {

// Invariants: rows stand in the order of add().
class RowCollector {
 public:
  RowCollector(Split& split, bool skips_bad_rows) : split_(split), skips_(skips_bad_rows) {}

  void begin_file(const std::filesystem::path& path) {
    file_ = std::make_shared<const std::string>(path.string());
  }
  // The path, as messages name it.
  const std::string& file() const { return *file_; }
  // `fields`: what was read; anything but an object is refused. `line`: from 1.
  void add(Json fields, int64_t line);
  // A row that cannot be read: throws FormatError(message), or counts it.
  void refuse(const std::string& message);

 private:
  Split& split_;
  bool skips_;
  std::shared_ptr<const std::string> file_;
};

// One object per line; with `may_be_array` also one array of objects. An array that is not closed
// is an error in any case: nobody can say how many rows are missing.
void read_json_rows(std::string_view text, bool may_be_array, RowCollector& rows);

// RFC 4180: the first record names the columns, "" inside quotes is a quote, a quoted field may
// hold line ends. Values are strings, a field without content is null. Errors: FormatError for a
// file without a header, with an unnamed or repeated column, or with a quote that is not closed.
void read_csv_rows(std::string_view text, char separator, RowCollector& rows);

// Every line is a row with the one column "text", empty lines too (as `datasets` reads text).
void read_text_rows(std::string_view text, RowCollector& rows);

// Columns of strings, numbers, booleans, lists and structs; a row's "line" is its number.
// Errors: FormatError for a broken file and for a column of another type (named).
void read_parquet_rows(const std::filesystem::path& path, RowCollector& rows);
// Arrow IPC, as a stream (what `datasets` writes) or as a file.
void read_arrow_rows(const std::filesystem::path& path, RowCollector& rows);

}  // namespace strata::data
