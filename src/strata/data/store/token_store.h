// The tokenized rows of a set, from memory or from a file that is mapped
// (docs/format/token-cache.md). Never tokenizes, never decides where files lie.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "strata/base/file.h"
#include "strata/data/batch.h"
#include "strata/data/prepare.h"
#include "strata/data/store/token_writer.h"

namespace strata::data {

// Threads: all const methods may be called at the same time.
// Memory: of a mapped file a few tens of megabytes, however much of it has been read.
class TokenStore {
 public:
  TokenStore() = default;
  explicit TokenStore(Dataset dataset);
  // Maps a file that a TokenWriter made; its pages are shared with other ranks of the machine.
  // Errors: IoError; FormatError for a file that is cut off, of another version or not consistent.
  static TokenStore map(const std::filesystem::path& path);
  // FormatError for a row that is not as it was written. Reads all of them.
  void check_rows() const;
  // What `make` writes, in a file without a name in the folder; `make` returns the statistics.
  static TokenStore scratch(const std::function<DatasetStats(TokenWriter&)>& make,
                            const std::filesystem::path& folder = scratch_path());

  size_t size() const { return rows_ != nullptr ? rows_->size() : row_ends_.size(); }
  // FormatError for a row of a file that is not as it was written.
  ExampleView operator[](size_t row) const;
  // What the index says of a row; its tokens are not read.
  int64_t num_tokens(size_t row) const;
  // Of a rated row those of its own answer after its prompt; of others all.
  int64_t num_own_tokens(size_t row) const;
  std::span<const int32_t> lengths(size_t row) const;
  // 16 hexadecimal digits that depend on every row's tokens, labels and documents and on the order
  // of the rows, not on where they are kept.
  std::string content() const;
  // Of the mapped file; 0: there is none.
  uint64_t file_bytes() const { return file_ != nullptr ? file_->data().size() : 0; }
  const DatasetStats& stats() const { return stats_; }
  // The mapped file goes with the last copy of this store; who has mapped it keeps what he has.
  void remove_at_end();
  // The set was kept when its files had other names.
  void rename_files(std::vector<std::string> names) { stats_.rename_files(std::move(names)); }

 private:
  void read(const std::filesystem::path& path, std::span<const std::byte> bytes);
  void check_positions(const std::filesystem::path& path) const;
  void forget_some(uint64_t read_bytes) const;

  DatasetStats stats_;
  std::shared_ptr<const std::vector<Example>> rows_;  // null: mapped
  std::shared_ptr<const MappedFile> file_;
  std::filesystem::path path_;
  // The parts of the mapped file.
  std::span<const int32_t> tokens_;  // of each row its ids, then its labels
  std::span<const uint64_t> row_ends_, document_ends_, target_ends_, checksums_;
  std::span<const int32_t> lengths_, second_texts_;
  std::span<const float> targets_;
  std::span<const uint8_t> ratings_;
  std::shared_ptr<std::atomic<uint64_t>> mapped_bytes_;  // since pages were last forgotten
  std::shared_ptr<const void> at_end_;                   // removes the file
};

}  // namespace strata::data
