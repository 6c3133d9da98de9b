// Reads ranges of a sharded checkpoint's tensors as bytes, whoever wrote them at whatever world
// size. Owns: the maps of its files, and that no byte is handed out whose checksum was not proved.
// Never: conversion of element types.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>

#include "strata/checkpoint/manifest.h"
#include "strata/hf/safetensors.h"

namespace strata::checkpoint {

// Errors: IoError for missing files, FormatError for everything that is not what the manifest says.
// Threads: one. Memory: maps; pages that were read are given back.
class PieceReader {
 public:
  explicit PieceReader(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  // The record of a tensor; FormatError when there is none.
  const TensorRecord& record(const std::string& tensor) const;
  // Elements [begin, begin + out.size() / element size) of the flattened tensor.
  // Requires: the range lies within the tensor.
  void read(const std::string& tensor, int64_t begin, std::span<std::byte> out);
  // The content of a file without tensors. FormatError when it is not listed or damaged.
  std::string small_file(const std::string& name) const;
  // Proves the checksum of everything.
  void verify_all();

 private:
  const hf::SafetensorsFile& open(const std::string& name);
  // The piece's bytes, proved at their first use.
  std::span<const std::byte> proved(const PieceRecord& piece, const TensorRecord& record);

  std::filesystem::path folder_;
  Manifest manifest_;
  std::map<std::string, hf::SafetensorsFile> files_;
  std::set<std::pair<std::string, std::string>> proved_;  // file, key
};

}  // namespace strata::checkpoint
