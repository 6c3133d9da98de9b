// OUTPUT_DIR/metrics.jsonl: one JSON object per logged step. Never: decides what is in a row.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "strata/base/json.h"

namespace strata::report {

// Memory: none; every row is handed to the operating system at once, so that a killed run keeps it.
// Threads: one at a time. Only one process may own a file.
class MetricsFile {
 public:
  // `resumed_step`: the step a resumed run continues from; rows of later steps (and a torn last
  // line and what is no row) are dropped in one atomic replacement before the first append. Without
  // it the file starts empty. Throws IoError.
  MetricsFile(std::filesystem::path path, std::optional<int64_t> resumed_step);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  // Requires: an object with the integer "step". Key order is kept. Throws IoError.
  void append(const Json& row);
  // Lines that were no rows when the run was resumed.
  size_t num_damaged() const { return num_damaged_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  size_t num_damaged_ = 0;
  bool is_torn_ = false;  // the file ends with half a row
};

// The rows of a metrics file in order; a torn last line is left out, and so is what is no row,
// which `num_damaged` counts. Throws IoError.
std::vector<Json> read_metrics(const std::filesystem::path& path, size_t* num_damaged = nullptr);

}  // namespace strata::report
