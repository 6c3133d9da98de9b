// manifest.json of a sharded checkpoint: which tensors it holds and where their pieces lie.
// Format page: docs/format/checkpoint.md. Owns: names and fields. Never: tensor data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "strata/base/json.h"

namespace strata::checkpoint {

// Elements [begin, end) of the flattened tensor, as the 1-D tensor `key` of `file`.
struct PieceRecord {
  std::string file;
  std::string key;
  int64_t begin = 0;
  int64_t end = 0;
  std::string checksum;  // XXH3-64 of the piece's bytes, 16 hexadecimal digits
};

struct TensorRecord {
  std::vector<int64_t> shape;
  std::string dtype;                // safetensors name
  std::vector<PieceRecord> pieces;  // ascending by begin; they tile the tensor
};

// Names of tensors: "parameter/NAME", "exp_avg/NAME", "exp_avg_sq/NAME" with the weight's name.
struct Manifest {
  static constexpr int kVersion = 1;
  int world_size = 0;
  int64_t step = 0;
  std::map<std::string, TensorRecord> tensors;
};

Json to_json(const Manifest& manifest);

// Throws FormatError for another version, missing fields, and pieces that do not tile their tensor.
Manifest read_manifest(const std::filesystem::path& folder);

std::string checksum(const void* data, size_t size_bytes);

}  // namespace strata::checkpoint
