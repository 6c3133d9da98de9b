#include "strata/data/files/source.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/scratch_file.h"
#include "strata/data/files/dataset_card.h"
#include "strata/data/files/decompress.h"
#include "strata/data/files/file_format.h"
#include "strata/data/files/row_collector.h"
#include "strata/data/files/split_files.h"
#include "strata/data/store/file_writer.h"

namespace strata::data {
namespace {

namespace fs = std::filesystem;

// What a file is by its first bytes where it is none of text, and what to do.
constexpr struct {
  std::string_view begin, found, advice;
} kOtherFiles[] = {
    {"\xff\xfe", "utf-16", "convert it: iconv -f UTF-16 -t UTF-8"},
    {"\xfe\xff", "utf-16", "convert it: iconv -f UTF-16 -t UTF-8"},
    {"\x1f\x8b", "a gzip file", "give it a name that ends with .gz"},
    {"\x28\xb5\x2f\xfd", "a zstd file", "give it a name that ends with .zst"},
    {"PK\x03\x04", "a zip file", "unpack it; save a table of a spreadsheet as .csv"},
    {"PAR1", "a parquet file", "give it a name that ends with .parquet"},
    {"ARROW1", "an Arrow file", "give it a name that ends with .arrow"},
    {"BZh9", "a bzip2 file", "unpack it: bunzip2"},
    {"\xfd\x37zXZ", "an xz file", "unpack it: unxz"},
};

// A text may begin with the letters of a signature; none has a control character soon after.
bool has_control_character(std::string_view text) {
  return std::ranges::any_of(text, [](char c) {
    const bool is_space = c == '\t' || c == '\n' || c == '\r' || c == '\f';
    return static_cast<unsigned char>(c) < 0x20 && !is_space;
  });
}

// UTF-16 without a byte order mark: what is ASCII has a zero on one side of every character.
// Nothing: no such text.
std::string_view zero_padded_encoding(std::string_view text) {
  size_t zeros[2] = {0, 0};
  for (size_t i = 0; i < text.size(); ++i) zeros[i % 2] += text[i] == '\0';
  const size_t most = text.size() / 2;
  if (most < 2 || 2 * std::max(zeros[0], zeros[1]) <= most) return {};
  if (zeros[0] == 0) return "UTF-16LE";
  return zeros[1] == 0 ? "UTF-16BE" : "";
}

void require_text(std::string_view text, const std::string& file) {
  constexpr size_t kLooked = 64;
  for (const auto& [begin, found, advice] : kOtherFiles) {
    if (!text.starts_with(begin)) continue;
    const bool is_ascii = static_cast<unsigned char>(begin[0]) < 0x80;
    if (is_ascii && !has_control_character(text.substr(0, kLooked))) continue;
    throw FormatError("{}: found {} (by its first bytes), expected utf-8; {}", file, found, advice);
  }
  if (const std::string_view encoding = zero_padded_encoding(text.substr(0, kLooked));
      !encoding.empty()) {
    throw FormatError(
        "{}: found utf-16 (by the zeros among its first bytes), expected utf-8; convert it: iconv "
        "-f {} -t UTF-8",
        file, encoding);
  }
}

void read_text_file(std::string_view text, const std::string& extension, RowCollector& rows) {
  require_text(text, rows.file());
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  if (extension == ".csv" || extension == ".tsv") {
    read_csv_rows(text, extension == ".csv" ? ',' : '\t', rows);
  } else if (extension == ".txt") {
    read_text_rows(text, rows);
  } else {
    read_json_rows(text, rows);
  }
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// What is compressed is unpacked to a file first: its text may be larger than memory.
void read_compressed(const fs::path& path, const std::string& extension, RowCollector& rows) {
  const ScratchFile unpacked(scratch_path());
  FileWriter writer(unpacked);
  decompress_file(path, [&](std::string_view text) {
    writer.add(std::span<const char>(text.data(), text.size()));
  });
  writer.flush();
  read_text_file(text_of(rows.map(unpacked.path())), extension, rows);
}

void read_rows(const fs::path& path, RowCollector& rows) {
  const FileFormat format = file_format(path);
  if (format.extension == ".parquet") return read_parquet_rows(path, rows);
  if (format.extension == ".arrow") return read_arrow_rows(path, rows);
  if (format.is_compressed) return read_compressed(path, format.extension, rows);
  read_text_file(text_of(rows.map(path)), format.extension, rows);
}

// Gives columns their wanted names. `row` is the first of its split.
void require_columns(const Row& row, const LoadOptions& options) {
  for (const auto& [wanted, name] : options.columns) {
    if (row.fields.contains(name)) continue;
    std::vector<std::string> present;
    for (const auto& [column, value] : row.fields.items()) present.push_back(column);
    throw ConfigError(
        "dataset_columns: found no column \"{}\" in {} (it has: {}), expected the "
        "one to read as \"{}\"",
        name, row.where(), fmt::join(present, ", "), wanted);
  }
}

void rename_columns(const LoadOptions& options, Row& row,
                    std::map<std::string, int64_t>& left_out) {
  Json renamed = Json::object();
  for (const auto& [wanted, name] : options.columns) {
    const auto it = row.fields.find(name);
    if (it == row.fields.end()) continue;
    renamed[wanted] = *it;
  }
  for (const auto& [wanted, name] : options.columns) row.fields.erase(name);
  for (auto& [wanted, value] : renamed.items()) {
    if (row.fields.contains(wanted)) {
      ++left_out[fmt::format("{} (dataset_columns puts another in its place)", wanted)];
    }
    row.fields[wanted] = std::move(value);
  }
}

// The names of classes go with their columns. Rows of a file share them.
class RenamedClasses {
 public:
  void rename(const LoadOptions& options, Row& row) {
    if (!row.class_names) return;
    if (row.class_names != from_) {
      from_ = row.class_names;
      ClassNames names = *from_;
      for (const auto& [wanted, name] : options.columns) names.erase(name);
      for (const auto& [wanted, name] : options.columns) {
        names.erase(wanted);
        if (const auto it = from_->find(name); it != from_->end()) names[wanted] = it->second;
      }
      to_ = std::make_shared<const ClassNames>(std::move(names));
    }
    row.class_names = to_;
  }

 private:
  std::shared_ptr<const ClassNames> from_, to_;
};

// The files' shares of all bytes, cumulated: the place of file i is from [i] to [i + 1].
std::vector<double> places_of(const std::vector<fs::path>& files) {
  std::vector<double> places = {0.0};
  std::error_code error;
  for (const fs::path& file : files) {
    const uintmax_t size = fs::file_size(file, error);
    places.push_back(places.back() + (error ? 0.0 : static_cast<double>(size)));
  }
  const double all = std::max(places.back(), 1.0);
  for (double& place : places) place /= all;
  return places;
}

}  // namespace

ClassNames card_classes(const fs::path& file_or_folder, const LoadOptions& options) {
  if (!options.reads_card_classes || !fs::is_directory(file_or_folder)) return {};
  return read_card_classes(file_or_folder, options.configuration);
}

ReadResult read_split(const fs::path& file_or_folder, const std::string& split,
                      const LoadOptions& options, const TakeRows& take, int64_t first) {
  ReadResult result{.files = find_split_files(file_or_folder, split, options.configuration),
                    .bad_rows = {}};
  bool is_first = true;
  RenamedClasses classes;
  const TakeRows take_renamed = [&](RowBatch batch) {
    if (std::exchange(is_first, false)) require_columns(batch.rows.front(), options);
    if (!options.columns.empty()) {
      for (Row& row : batch.rows) {
        rename_columns(options, row, result.left_out);
        classes.rename(options, row);
      }
    }
    return take(std::move(batch));
  };
  RowCollector collector(take_renamed, options.skip_bad_rows, first);
  collector.describe_columns(card_classes(file_or_folder, options));
  const std::vector<double> places = places_of(result.files);
  try {
    for (size_t i = 0; i < result.files.size() && collector.wants_more(); ++i) {
      collector.begin_file(result.files[i], {places[i], places[i + 1]});
      read_rows(result.files[i], collector);
    }
  } catch (const Error&) {
    collector.flush();  // the rows before may have errors of their own, which come first
    throw;
  }
  collector.flush();
  result.num_rows = collector.num_rows();
  result.bad_rows = collector.bad_rows();
  result.left_out.insert(collector.left_out().begin(), collector.left_out().end());
  if (collector.num_rows() > 0) return result;
  throw FormatError("{}: found no rows{}, expected at least one", result.files.front().string(),
                    result.bad_rows.count > 0
                        ? fmt::format(" that can be read (the first: {})", result.bad_rows.first)
                        : "");
}

int64_t count_rows(const fs::path& file_or_folder, const std::string& split,
                   const LoadOptions& options, int64_t limit) {
  const auto take_none = [](const RowBatch&) { return false; };
  return std::min(read_split(file_or_folder, split, options, take_none, limit).num_rows, limit);
}

Split load_split(const fs::path& file_or_folder, const std::string& split,
                 const LoadOptions& options) {
  Split result;
  ReadResult read = read_split(file_or_folder, split, options, [&](RowBatch batch) {
    std::ranges::move(batch.rows, std::back_inserter(result.rows));
    return true;
  });
  result.files = std::move(read.files);
  result.bad_rows = std::move(read.bad_rows);
  return result;
}

}  // namespace strata::data
