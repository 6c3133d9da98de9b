#include "strata/report/metrics_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include "strata/base/error.h"
#include "strata/base/file.h"

namespace strata::report {
namespace {

std::string row_line(const Json& row) {
  return dump_python(row, /*indent=*/-1, /*sort_keys=*/false, /*ensure_ascii=*/false) + "\n";
}

// Nothing for what is no row, as where a loss of power left zeros.
std::optional<Json> row_in(std::string_view line, const std::string& name) {
  try {
    Json row = parse_json(line, name);
    if (row.is_object() && row.contains("step") && row.at("step").is_number_integer()) return row;
  } catch (const FormatError&) {
  }
  return std::nullopt;
}

// Returns the number of lines that are no rows and were dropped.
size_t keep_rows_until(const std::filesystem::path& path, int64_t step) {
  if (!std::filesystem::exists(path)) {
    return 0;
  }
  std::string kept;
  size_t num_damaged = 0;
  for (const Json& row : read_metrics(path, &num_damaged)) {
    if (row.at("step").get<int64_t>() <= step) {
      kept += row_line(row);
    }
  }
  write_file_atomically(path, kept);
  return num_damaged;
}

}  // namespace

MetricsFile::MetricsFile(std::filesystem::path path, std::optional<int64_t> resumed_step)
    : path_(std::move(path)) {
  if (resumed_step) {
    num_damaged_ = keep_rows_until(path_, *resumed_step);
  }
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (resumed_step ? 0 : O_TRUNC);
  descriptor_ = ::open(path_.c_str(), flags, 0666);
  if (descriptor_ < 0) {
    throw IoError(
        "{}: found that it cannot be opened ({}), expected a writable file; choose another "
        "output_dir",
        path_.string(), errno_text(errno));
  }
}

MetricsFile::~MetricsFile() { ::close(descriptor_); }

void MetricsFile::append(const Json& row) {
  const std::string line = (is_torn_ ? "\n" : "") + row_line(row);
  const off_t begin = ::lseek(descriptor_, 0, SEEK_END);
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = ::write(descriptor_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      const int error_number = errno;
      // No half row. Where even that fails, it gets a line of its own, which readers skip.
      const bool is_cut = begin >= 0 && ::ftruncate(descriptor_, begin) == 0;
      if (!is_cut && rest.size() < line.size()) is_torn_ = true;
      throw IoError(
          "{}: found that a row cannot be written ({}), expected room for it; free disk "
          "space",
          path_.string(), errno_text(error_number));
    }
    rest.remove_prefix(static_cast<size_t>(written));
  }
  is_torn_ = false;
}

std::vector<Json> read_metrics(const std::filesystem::path& path, size_t* num_damaged) {
  const std::string text = read_file(path);
  std::vector<Json> rows;
  std::string_view rest = text;
  // Only whole lines count: a row without its newline was torn by a crash.
  for (size_t end; (end = rest.find('\n')) != std::string_view::npos;) {
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    if (line.empty()) continue;
    if (auto row = row_in(line, path.string())) {
      rows.push_back(std::move(*row));
    } else if (num_damaged != nullptr) {
      ++*num_damaged;
    }
  }
  return rows;
}

}  // namespace strata::report
