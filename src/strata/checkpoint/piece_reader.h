// Reads ranges of a sharded checkpoint's tensors as bytes, whoever wrote them at whatever world
// size. Owns: its files, and that read() succeeds only with bytes whose checksum was proved: of a
// part of a piece those of the blocks that it lies in, or of the whole piece where it has none.
// Never: conversion of element types.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "strata/base/descriptor.h"
#include "strata/base/read_ahead.h"
#include "strata/checkpoint/manifest.h"
#include "strata/hf/formats/safetensors.h"

namespace strata::checkpoint {

struct PieceReaderOptions {
  // As much to read at once comes in blocks, ahead of its use (base/read_ahead.h); less with plain
  // calls.
  uint64_t streamed_bytes = uint64_t{16} << 20;
  ReadAheadOptions read_ahead = {};
  // What lies no further apart in a file is read at once: what is between it is dropped.
  uint64_t largest_gap = uint64_t{256} << 10;
  // Files of ranks that stay open: a process may have a thousand, and a run has more ranks.
  size_t most_open = 128;
};

// Elements [begin, begin + out.size() / element size) of a flattened tensor.
struct WantedRange {
  std::string tensor;
  int64_t begin = 0;
  std::span<std::byte> out;
};

// Errors: IoError for missing files, FormatError for everything that is not what the manifest says.
// Threads: one. Memory: 1 MiB beyond what is read into, 16 MiB once something large was read.
class PieceReader {
 public:
  explicit PieceReader(std::filesystem::path folder, const PieceReaderOptions& options = {});

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  // The record of a tensor; FormatError when there is none.
  const TensorRecord& record(const std::string& tensor) const;
  // Requires: the ranges lie within their tensors. After an error the spans hold anything.
  void read(const std::string& tensor, int64_t begin, std::span<std::byte> out);
  // Many at once, in the order of the files.
  void read(std::span<const WantedRange> wanted);
  // The content of a file without tensors. FormatError when it is not listed or damaged.
  std::string small_file(const std::string& name) const;
  // Of its files, so far, whatever for: wanted, to be proved, or on the way.
  uint64_t bytes_read() const { return bytes_read_; }
  // Proves a tensor's checksums. Whether all of its bytes are zero.
  bool is_zero(const std::string& tensor);
  // Proves the checksum of everything.
  void verify_all();

 private:
  struct OpenFile {
    hf::SafetensorsFile layout;
    Descriptor descriptor;  // while it is one of those that are open
  };
  // Bytes of a file that hold a piece.
  struct Range {
    OpenFile* file;
    uint64_t begin = 0;
    uint64_t size = 0;
  };
  // A piece, or some of its blocks, and which of its bytes go where.
  struct Job {
    const PieceRecord* piece;
    const TensorRecord* record;
    Range range;
    std::optional<uint64_t> first_block = {};  // nothing: the whole is proved, or was
    uint64_t skip = 0;                         // of the range, before the first byte for `out`
    std::span<std::byte> out = {};             // may be empty: only proved
    bool* is_zero = nullptr;
    bool is_proved = false;  // before
  };
  class Proof;
  class Cursor;

  OpenFile& open(const std::string& name);
  int descriptor_of(OpenFile& file);
  Range range_of(const PieceRecord& piece, const TensorRecord& record);
  Job job_of(const PieceRecord& piece, const TensorRecord& record, uint64_t skip,
             std::span<std::byte> out);
  // Of the job of a whole piece leaves the blocks in which its bytes lie, if that is less.
  void narrow_to_blocks(Job& job) const;
  void collect(const WantedRange& wanted, std::vector<Job>& jobs);
  void run(std::vector<Job>& jobs);
  void read_plainly(const Job& job);
  // In the order of the files, ahead of use.
  void stream(std::vector<Job>& jobs);
  // How many of the first ones, in the order of the files, lie so near to each other that what is
  // between them is read, too.
  size_t count_neighbours(std::span<const Job> jobs) const;
  void read_streamed(const Job& job, Cursor& cursor);
  void fetch(const Range& range, uint64_t begin, std::span<std::byte> out);
  ReadAhead& read_ahead(bool past_cache);

  std::filesystem::path folder_;
  Manifest manifest_;
  PieceReaderOptions options_;
  std::map<std::string, OpenFile> files_;
  std::set<std::tuple<std::string, std::string, int64_t>> proved_;  // file, key, offset
  std::vector<std::byte> block_;  // what is proved but not asked for passes through here
  std::unique_ptr<ReadAhead> read_ahead_;
  size_t num_open_ = 0;
  uint64_t bytes_read_ = 0;
};

}  // namespace strata::checkpoint
