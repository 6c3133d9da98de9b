// Reads ranges of a sharded checkpoint's tensors as bytes, whoever wrote them at whatever world
// size. Owns: its files, and that read() succeeds only with bytes whose checksum was proved.
// Never: conversion of element types.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "strata/base/descriptor.h"
#include "strata/checkpoint/manifest.h"
#include "strata/hf/safetensors.h"

namespace strata::checkpoint {

// Errors: IoError for missing files, FormatError for everything that is not what the manifest says.
// Threads: one. Memory: 1 MiB beyond what is read into.
class PieceReader {
 public:
  explicit PieceReader(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  // The record of a tensor; FormatError when there is none.
  const TensorRecord& record(const std::string& tensor) const;
  // Elements [begin, begin + out.size() / element size) of the flattened tensor.
  // Requires: the range lies within the tensor. After an error `out` holds anything.
  void read(const std::string& tensor, int64_t begin, std::span<std::byte> out);
  // The content of a file without tensors. FormatError when it is not listed or damaged.
  std::string small_file(const std::string& name) const;
  // Proves the checksum of everything.
  void verify_all();

 private:
  struct OpenFile {
    hf::SafetensorsFile layout;
    Descriptor descriptor;
  };
  // Bytes of a file that hold a piece.
  struct Range {
    const OpenFile* file;
    uint64_t begin = 0;
    uint64_t size = 0;
  };

  const OpenFile& open(const std::string& name);
  Range range_of(const PieceRecord& piece, const TensorRecord& record);
  // Copies the piece's bytes from `skip` on to `out`; proves all of the piece at its first use.
  void read_piece(const PieceRecord& piece, const TensorRecord& record, uint64_t skip,
                  std::span<std::byte> out);
  void fetch(const Range& range, uint64_t begin, std::span<std::byte> out) const;

  std::filesystem::path folder_;
  Manifest manifest_;
  std::map<std::string, OpenFile> files_;
  std::set<std::tuple<std::string, std::string, int64_t>> proved_;  // file, key, offset
  std::vector<std::byte> block_;  // what is proved but not asked for passes through here
};

}  // namespace strata::checkpoint
