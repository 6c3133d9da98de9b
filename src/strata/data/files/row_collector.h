// Takes the rows that readers find in files, and decides what an unreadable one does. Never reads
// files, never interprets columns.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "strata/base/file.h"
#include "strata/data/files/source.h"

namespace strata::data {

// Invariants: rows are handed out in the order of add(), each once.
class RowCollector {
 public:
  // Rows before number `first` (from 0) are counted and not handed out.
  RowCollector(const TakeRows& take, bool skips_bad_rows, int64_t first = 0)
      : take_(take), skips_(skips_bad_rows), first_(first) {}

  // `part`: how much of all the files lies before this one, and before the next.
  void begin_file(const std::filesystem::path& path, std::pair<double, double> part);
  // The bytes of the file, or of what stands for it, until the next begin_file. What has been read
  // of them is forgotten on the way.
  std::span<const std::byte> map(const std::filesystem::path& path);
  // The path, as messages name it.
  const std::string& file() const { return *file_; }
  // Whether the next `rows` of the file are all before the first wanted one, and need not be read:
  // they are counted. Never so where bad rows, which count as none, are left out.
  bool passes_over(int64_t rows = 1);
  // `fields`: what was read; anything but an object is refused. `line`, `number`: as in Row.
  void add(Json fields, int64_t line, int64_t number = 0);
  // A row that cannot be read: throws FormatError(message), or counts it.
  void refuse(const std::string& message);
  // Before the first file: what counts for these columns whatever files say; no names: no class.
  void describe_columns(ClassNames card);
  // What the file says of the rows to come, until the next begin_file.
  void name_classes(ClassNames names);
  // Rows without a column that the file has.
  void leave_out(const std::string& column, int64_t rows) { left_out_[column] += rows; }
  // The reader is at byte `at` of the file's `size`.
  void move_to(size_t at, size_t size);
  // False once nobody wants further rows: the reader may stop.
  bool wants_more() const { return wants_more_; }
  // Hands out what is left.
  void flush();

  // Those that were passed over too.
  int64_t num_rows() const { return num_rows_; }
  const BadRows& bad_rows() const { return bad_rows_; }
  const std::map<std::string, int64_t>& left_out() const { return left_out_; }

 private:
  // A batch ends with the row that fills one of these.
  static constexpr size_t kBatchRows = 1000, kBatchBytes = size_t{1} << 21;
  static constexpr size_t kForgetBytes = size_t{1} << 24;

  void forget();

  const TakeRows& take_;
  bool skips_;
  int64_t first_;
  bool wants_more_ = true;
  std::shared_ptr<const std::string> file_;
  ClassNames card_;
  std::shared_ptr<const ClassNames> class_names_;
  std::pair<double, double> file_part_;
  std::optional<MappedFile> mapped_;
  size_t position_ = 0, forgotten_ = 0;  // bytes of the file
  RowBatch batch_;
  size_t batch_bytes_ = 0;
  int64_t num_rows_ = 0;
  BadRows bad_rows_;
  std::map<std::string, int64_t> left_out_;
};

// One object per line, or one array of objects whatever the file's name ends with. An array that is
// not closed is an error in any case: nobody can say how many rows are missing. So is an object
// around lists of rows, as some programs export them, which is not what its rows are.
void read_json_rows(std::string_view text, RowCollector& rows);

// RFC 4180: the first record names the columns, "" inside quotes is a quote, a quoted field may
// hold line ends. Values are strings as they are written; a field without content, or with one of
// pandas' words for it (NA, nan, null, None, ...), is null. Errors: FormatError for a
// file without a header, with an unnamed or repeated column, or with a quote that is not closed.
void read_csv_rows(std::string_view text, char separator, RowCollector& rows);

// Every line is a row with the one column "text", empty lines too (as `datasets` reads text). Lines
// end with \n, \r\n or \r.
void read_text_rows(std::string_view text, RowCollector& rows);

// Columns of the types that arrow_values.h reads; others are left out by their names. A row's
// "line" is its number. Errors: FormatError for a broken file.
void read_parquet_rows(const std::filesystem::path& path, RowCollector& rows);
// Arrow IPC, as a stream (what `datasets` writes) or as a file.
void read_arrow_rows(const std::filesystem::path& path, RowCollector& rows);

}  // namespace strata::data
