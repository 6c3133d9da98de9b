// The tokenized rows of a set, from memory or from a file that is mapped
// (docs/format/token-cache.md). Never tokenizes, never decides where files lie.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "strata/data/batch.h"
#include "strata/data/prepare.h"

namespace strata::data {

// Threads: all const methods may be called at the same time.
class TokenStore {
 public:
  TokenStore() = default;
  explicit TokenStore(Dataset dataset);
  // Maps a file that write() made; its pages are shared with other ranks of the machine.
  // Errors: IoError; FormatError for a file that is cut off, of another version or not consistent.
  static TokenStore map(const std::filesystem::path& path);

  size_t size() const { return rows_.size(); }
  const ExampleView& operator[](size_t row) const { return rows_[row]; }
  const DatasetStats& stats() const { return stats_; }

 private:
  std::vector<ExampleView> rows_;
  DatasetStats stats_;
  std::shared_ptr<const void> memory_;  // what the views show
};

// Writes the file that TokenStore::map reads, whole or not at all.
void write_tokens(const Dataset& dataset, const std::filesystem::path& path);

}  // namespace strata::data
