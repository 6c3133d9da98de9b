// Writes the file of tokenized rows that TokenStore maps (docs/format/token-cache.md), row by row,
// in memory that does not grow with them. Never tokenizes, never decides where files lie.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "strata/base/scratch_file.h"
#include "strata/data/prepare.h"
#include "strata/data/store/file_writer.h"

namespace strata::data {

// The head of the file; the parts follow in the order of the format page.
struct TokenFileHeader {
  char magic[8];
  uint64_t rows;
  uint64_t documents;
  uint64_t tokens;
  uint64_t targets;     // of labelled rows
  uint64_t note_bytes;  // of the JSON with the statistics
  uint64_t checksum;    // of all after the tokens
};
inline constexpr char kTokenFileMagic[8] = {'S', 'T', 'R', 'A', 'T', 'O', 'K', '5'};

// What the file says beside each row, so that a damaged row is never trained on.
uint64_t checksum_of(const ExampleView& row);

// Numbers that stand after the tokens in the file: they wait in a file of their own once they are
// many.
class WaitingColumn {
 public:
  template <typename T>
  void add(std::span<const T> values) {
    buffer_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    if (buffer_.size() >= kRoom) spill();
  }
  // Gives `take` all of them, in parts.
  void drain(const std::function<void(std::span<const std::byte>)>& take);

 private:
  static constexpr size_t kRoom = size_t{1} << 18;

  void spill();

  std::string buffer_;
  std::optional<ScratchFile> scratch_;
  std::optional<FileWriter> writer_;
};

// The file is whole once finish() has returned. Errors of all: IoError.
class TokenWriter {
 public:
  explicit TokenWriter(const std::filesystem::path& path);
  explicit TokenWriter(const ScratchFile& file);

  void add(const ExampleView& row);
  // `syncs`: only return when the disk has it.
  void finish(const DatasetStats& stats, bool syncs);

  // Whether an error came from here, such as a full disk.
  bool has_failed() const { return has_failed_; }

 private:
  explicit TokenWriter(FileWriter file);
  void write(const ExampleView& row);

  FileWriter file_;
  TokenFileHeader header_ = {};
  WaitingColumn row_ends_, document_ends_, target_ends_, checksums_, lengths_, second_texts_,
      targets_, ratings_;
  bool has_failed_ = false;
};

}  // namespace strata::data
