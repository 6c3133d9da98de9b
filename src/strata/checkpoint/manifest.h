// manifest.json of a sharded checkpoint: which tensors it holds and where their pieces lie.
// Format page: docs/format/checkpoint.md. Owns: names and fields. Never: tensor data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "strata/base/json.h"

namespace strata::checkpoint {

// Elements [begin, end) of the flattened tensor: those from `offset` on of the tensor `key` of
// `file`, flattened.
struct PieceRecord {
  std::string file;
  std::string key;
  int64_t begin = 0;
  int64_t end = 0;
  std::string checksum;  // XXH3-64 of the piece's bytes, 16 hexadecimal digits
  int64_t offset = 0;
  // Of a piece of several blocks of this size their checksums, one after the other: of a part of
  // it the blocks that it lies in are proof enough. 0: only the whole is proved (smaller pieces,
  // and those of older versions).
  uint64_t block_bytes = 0;
  std::string block_checksums = {};
};

struct TensorRecord {
  std::vector<int64_t> shape;
  std::string dtype;                // safetensors name
  std::vector<PieceRecord> pieces;  // ascending by begin; they tile the tensor
};

// A file without tensors, such as trainer_state.json.
struct SmallFileRecord {
  uint64_t size_bytes = 0;
  std::string checksum;  // XXH3-64 of its bytes
};

// Names of tensors: "parameter/NAME" and, for each kind of optimizer state, "KIND/NAME" with the
// weight's name.
struct Manifest {
  static constexpr int kVersion = 2;
  int world_size = 0;
  int64_t step = 0;
  int64_t num_updates = 0;  // of the optimizer
  std::map<std::string, TensorRecord> tensors;
  std::map<std::string, SmallFileRecord> files;
};

// The file's text, which ends with a checksum of all before it.
std::string manifest_text(const Manifest& manifest);

// Throws FormatError for a wrong checksum, another version, missing fields, names that lead out of
// the folder, and pieces that do not tile their tensor. `subject` names the file in messages.
Manifest parse_manifest(std::string_view text, const std::string& subject);
Manifest read_manifest(const std::filesystem::path& folder);

// What one rank wrote, on its way to rank 0.
Json tensors_json(const std::map<std::string, TensorRecord>& tensors);
// Adds the pieces of another rank's tensors. Throws FormatError when shapes or types differ.
void add_tensors(const Json& tensors, const std::string& subject, Manifest& manifest);

// XXH3-64 as 16 hexadecimal digits.
std::string checksum(const void* data, size_t size_bytes);

}  // namespace strata::checkpoint
