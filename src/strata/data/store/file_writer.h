// Bytes to a file, piece after piece, through a buffer. A file without a name moves to another disk
// where its own is full. Never: names the file for good, nor syncs unless it is told to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "strata/base/descriptor.h"
#include "strata/base/scratch_file.h"

namespace strata::data {

// Where files go that only this process sees.
std::filesystem::path scratch_path();

// Errors of all: IoError with the path, or the folder of a file without a name.
class FileWriter {
 public:
  // Creates the file, or empties it.
  explicit FileWriter(const std::filesystem::path& path);
  explicit FileWriter(const ScratchFile& file);

  template <typename T>
  void add(std::span<const T> values) {
    buffer_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    if (buffer_.size() >= kFlushBytes) flush();
  }
  template <typename T>
  void add(const T& value) {
    add(std::span<const T>(&value, 1));
  }
  // All that was added is in the file.
  void flush();
  // Writes over bytes that are in the file already.
  void overwrite(uint64_t offset, std::span<const std::byte> bytes);
  void sync();

  uint64_t size() const { return at_ + buffer_.size(); }

 private:
  static constexpr size_t kFlushBytes = size_t{1} << 18;

  FileWriter(const std::filesystem::path& path, std::string subject);
  void write(uint64_t offset, std::span<const std::byte> bytes);
  bool move_to_another_disk();

  std::string subject_;  // of errors
  Descriptor file_;
  int scratch_ = -1;  // the descriptor of a ScratchFile
  uint64_t at_ = 0;   // bytes in the file
  std::string buffer_;
};

}  // namespace strata::data
