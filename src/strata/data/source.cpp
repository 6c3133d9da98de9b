#include "strata/data/source.h"

#include <string_view>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/file.h"
#include "strata/data/decompress.h"
#include "strata/data/row_collector.h"
#include "strata/data/split_files.h"

namespace strata::data {
namespace {

namespace fs = std::filesystem;

void read_text_file(std::string_view text, const std::string& extension, RowCollector& rows) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  if (extension == ".csv" || extension == ".tsv") {
    read_csv_rows(text, extension == ".csv" ? ',' : '\t', rows);
  } else if (extension == ".txt") {
    read_text_rows(text, rows);
  } else {
    read_json_rows(text, /*may_be_array=*/extension == ".json", rows);
  }
}

void read_rows(const fs::path& path, RowCollector& rows) {
  rows.begin_file(path);
  const FileFormat format = file_format(path);
  if (format.extension == ".parquet") return read_parquet_rows(path, rows);
  if (format.extension == ".arrow") return read_arrow_rows(path, rows);
  if (format.is_compressed) {
    return read_text_file(decompress_file(path), format.extension, rows);
  }
  const MappedFile file(path);
  read_text_file({reinterpret_cast<const char*>(file.data().data()), file.data().size()},
                 format.extension, rows);
}

void rename_columns(Split& split, const LoadOptions& options) {
  for (const auto& [wanted, name] : options.columns) {
    if (split.rows.empty()) return;
    if (!split.rows.front().fields.contains(name)) {
      std::vector<std::string> present;
      for (const auto& [column, value] : split.rows.front().fields.items()) {
        present.push_back(column);
      }
      throw ConfigError(
          "dataset_columns: found no column \"{}\" in {} (it has: {}), expected the "
          "one to read as \"{}\"",
          name, split.rows.front().where(), fmt::join(present, ", "), wanted);
    }
    for (Row& row : split.rows) {
      const auto it = row.fields.find(name);
      if (it == row.fields.end()) continue;
      Json value = std::move(*it);
      row.fields.erase(it);
      row.fields[wanted] = std::move(value);
    }
  }
}

}  // namespace

std::string Row::where() const {
  return fmt::format("{}:{}", file ? *file : std::string("row"), line);
}

const Json* Row::find(const std::string& column) const {
  const auto it = fields.find(column);
  return it == fields.end() || it->is_null() ? nullptr : &*it;
}

Split load_split(const fs::path& file_or_folder, const std::string& split,
                 const LoadOptions& options) {
  Split result{.rows = {}, .files = find_split_files(file_or_folder, split), .bad_rows = {}};
  RowCollector collector(result, options.skip_bad_rows);
  for (const fs::path& file : result.files) read_rows(file, collector);
  if (result.rows.empty()) {
    throw FormatError("{}: found no rows{}, expected at least one", result.files.front().string(),
                      result.bad_rows.count > 0
                          ? fmt::format(" that can be read (the first: {})", result.bad_rows.first)
                          : "");
  }
  rename_columns(result, options);
  return result;
}

}  // namespace strata::data
