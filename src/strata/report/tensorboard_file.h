// Event files that TensorBoard reads, with the names that Trainer's callback gives the values.
// Never: decides what is logged. Format: a file of TFRecords, each an Event of protocol buffers
// (tensorflow/core/util/event.proto, tensorflow/core/lib/io/record_writer.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "strata/base/json.h"

namespace strata::report {

// RUNS/Nov22_06-01-59_HOST in the local time, where Trainer's callback puts a run's events.
std::filesystem::path tensorboard_folder(const std::filesystem::path& output_dir);

// Memory: none; every record is handed to the operating system at once.
// Threads: one at a time.
class TensorboardFile {
 public:
  // A new file in `folder`, which is made if need be. Throws IoError.
  explicit TensorboardFile(const std::filesystem::path& folder);
  ~TensorboardFile();
  TensorboardFile(const TensorboardFile&) = delete;
  TensorboardFile& operator=(const TensorboardFile&) = delete;

  // The numbers among `values`; "loss" becomes "train/loss", "eval_loss" "eval/loss". "step" is
  // left out. Throws IoError, after which the file ends with the record before.
  void append(const Json& values, int64_t step);

  const std::filesystem::path& path() const { return path_; }

 private:
  void write_record(std::string_view event);

  std::filesystem::path path_;
  int descriptor_ = -1;
};

// CRC-32C (Castagnoli) of the bytes.
uint32_t crc32c(std::string_view bytes);

}  // namespace strata::report
