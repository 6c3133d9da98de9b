// Saves and loads the state of training as `checkpoint-N` folders: every rank writes and reads only
// its own pieces. Owns: the protocol that makes a checkpoint exist whole or not at all. Never: the
// full export (export.h) or what the small JSON files mean (train/).
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "strata/base/file_system.h"
#include "strata/base/write_stream.h"
#include "strata/checkpoint/export_files.h"
#include "strata/checkpoint/piece_reader.h"
#include "strata/checkpoint/state_pieces.h"
#include "strata/comm/mesh.h"

namespace strata::checkpoint {

// What is written beside the tensors: file name -> content ("trainer_state.json" -> ...).
using SmallFiles = std::map<std::string, std::string>;

// Which part of a save is this rank's.
struct SaveRole {
  int shard_rank = 0;
  int shard_ranks = 1;
  bool writes = true;  // replicas hold the same: one of them writes
};
SaveRole role_of(comm::Mesh& mesh);

// FULL_STATE_DICT: whole tensors in two files of the checkpoint, as from_pretrained() loads them;
// every rank writes its ranges of them, so that nothing is gathered anywhere.
struct WholeFiles {
  std::string weights;  // "model.safetensors", "adapter_model.safetensors"
  // Weight -> its keys in that file: a tied one may have two, and the manifest lists the first.
  // One without keys is no part of it and lies beside the optimizer's state.
  std::map<std::string, std::vector<std::string>> names;
  std::vector<std::pair<std::string, at::Tensor>> fixed;  // what does not train and belongs to it
  std::map<std::string, std::string> metadata{{"format", "pt"}};  // of that file
};
inline constexpr const char* kWholeOptimizerFile = "optimizer.safetensors";

// From how many bytes on a rank's file is written past the page cache, and in which blocks. Below
// it, two blocks of memory and a thread are more than they give.
struct StreamedFrom {
  uint64_t bytes = uint64_t{16} << 20;
  size_t block_bytes = WriteStream::kBlockBytes;
};

struct SaveRequest {
  std::filesystem::path output_dir;
  int64_t step = 0;         // of the run: names the folder
  int64_t num_updates = 0;  // of the optimizer: less where an update was skipped
  SmallFiles small_files;
  std::optional<WholeFiles> whole = {};  // nothing: a file of ranges for each rank
  std::vector<LocalPiece> derived = {};  // what is made of trained weights, for this save alone
  Trained trained = Trained::kUnknown;   // of whole files, which are read back before they count
  StreamedFrom streamed = {};
  // Rank 0: takes what went wrong when the checkpoint was in its place already; null: that is an
  // error too.
  std::string* leftover = nullptr;
};

// Writes OUTPUT_DIR/checkpoint-STEP: temporary folder, every file synced, one rename, then the
// pointer file `latest`. Trained weights and their optimizer state only: frozen weights are in the
// base checkpoint already.
// Collective over `group`, which holds all ranks; fails on all ranks if it fails on one, and then
// leaves nothing. Threads: any, if nobody else uses `group` meanwhile.
std::filesystem::path write_checkpoint(const SaveRequest& request,
                                       const std::vector<LocalPiece>& pieces, const SaveRole& role,
                                       comm::Group& group, FileSystem& files = real_file_system());

// The same from homes and optimizer, on the calling thread. `optimizer` may be null
// (save_only_model). Collective over the world.
std::filesystem::path save(const std::filesystem::path& output_dir, int64_t step,
                           shard::UnitStore& store, optim::Optimizer* optimizer,
                           const SmallFiles& small_files, FileSystem& files = real_file_system());

// Fills homes and optimizer state from a checkpoint written at any world size and strategy.
// FormatError for missing tensors, other shapes, wrong checksums. Not collective.
void load(PieceReader& reader, shard::UnitStore& store, optim::Optimizer* optimizer);

}  // namespace strata::checkpoint
