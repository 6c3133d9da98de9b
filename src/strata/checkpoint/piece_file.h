// A file of a checkpoint as one rank writes its pieces into it, and the part of the manifest that
// lists them. Owns: the order of writing, checksums, names of what a rank writes. Never: which
// files a checkpoint has (sharded.h, whole_files.h).
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "strata/base/file_system.h"
#include "strata/base/write_stream.h"
#include "strata/checkpoint/block_sums.h"
#include "strata/checkpoint/manifest.h"
#include "strata/checkpoint/state_pieces.h"
#include "strata/hf/formats/safetensors.h"

namespace strata::checkpoint {

// From how many bytes on a rank's file is written past the page cache, and in which blocks. Below
// it, two blocks of memory and a thread are more than they give.
struct StreamedFrom {
  uint64_t bytes = uint64_t{16} << 20;
  size_t block_bytes = WriteStream::kBlockBytes;
};

// How a rank writes its pieces.
struct PieceWriting {
  StreamedFrom streamed = {};
  uint64_t block_bytes = 0;  // of checksums for parts of a piece; 0: none
};

// Tensors by their names in the manifest, of one rank.
using ManifestPart = std::map<std::string, TensorRecord>;

std::span<std::byte> flat_bytes(const at::Tensor& flat);
std::string rank_file(int rank);
// Where a rank leaves its part for rank 0.
std::filesystem::path part_path(const std::filesystem::path& folder, int rank);
void write_part(const std::filesystem::path& folder, int rank, const ManifestPart& part,
                FileSystem& files);
// A record without file and checksum yet.
TensorRecord record_of(const LocalPiece& piece);

// An open file and this rank's part of it, in the order of the file: it is written from its
// beginning to its end.
class PieceFile {
 public:
  PieceFile(std::string name, std::unique_ptr<hf::SafetensorsWriter> writer);

  // `offset`: the piece's first element in the file's tensor. `is_listed`: the manifest says that
  // the piece is here. Requires: the piece outlives the file.
  void add(const LocalPiece& piece, std::string key, int64_t offset, bool is_listed = true);
  // Writes and syncs all of them, and lists them in `part`.
  void write(const PieceWriting& how, ManifestPart& part);

 private:
  struct Part {
    const LocalPiece* piece;
    std::string key;
    int64_t offset;
    bool is_listed;
  };

  // With the checksums in `record`.
  void write_one(const Part& part, PieceRecord& record);

  std::string name_;
  std::unique_ptr<hf::SafetensorsWriter> writer_;
  std::vector<Part> pieces_;
};

}  // namespace strata::checkpoint
