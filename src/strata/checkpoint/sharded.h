// Saves and loads the state of training as `checkpoint-N` folders: every rank writes and reads only
// its own pieces. Owns: the protocol that makes a checkpoint exist whole or not at all. Never: the
// full export (export.h) or what the small JSON files mean (train/).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "strata/base/file_system.h"
#include "strata/checkpoint/export_files.h"
#include "strata/checkpoint/piece_file.h"
#include "strata/checkpoint/piece_reader.h"
#include "strata/checkpoint/small_files.h"
#include "strata/checkpoint/state_pieces.h"
#include "strata/checkpoint/whole_files.h"
#include "strata/comm/mesh.h"

namespace strata::checkpoint {

// Which part of a save is this rank's.
struct SaveRole {
  int shard_rank = 0;
  int shard_ranks = 1;
  bool writes = true;  // replicas hold the same: one of them writes
};
SaveRole role_of(comm::Mesh& mesh);

// What went wrong when a checkpoint was in its place already: it is there, and can be read.
struct AfterSave {
  std::string trouble = {};  // or empty
  bool is_durable = true;    // false: a loss of power may take it away
  bool is_latest = true;     // false: `latest` still names the one before
  bool is_in_place = false;
  // Whether older ones may go.
  bool replaces_older() const { return is_durable && is_latest; }
};

struct SaveRequest {
  std::filesystem::path output_dir;
  int64_t step = 0;         // of the run: names the folder
  int64_t num_updates = 0;  // of the optimizer: less where an update was skipped
  SmallFiles small_files = {};
  std::optional<WholeFiles> whole = {};  // nothing: a file of ranges for each rank
  std::vector<LocalPiece> derived = {};  // what is made of trained weights, for this save alone
  Trained trained = Trained::kUnknown;   // of whole files, which are read back before they count
  StreamedFrom streamed = {};
  BlockSizes blocks = {};
  // Rank 0's; null: what goes wrong after the rename is an error too.
  AfterSave* after = nullptr;
};

// Writes OUTPUT_DIR/checkpoint-STEP: temporary folder, every file synced, one rename, then the
// pointer file `latest`. Trained weights and their optimizer state only: frozen weights are in the
// base checkpoint already.
// Collective over `group`, which holds all ranks; fails on all ranks if it fails on one, and then
// leaves what was there before, unless `after` is null. Threads: any, if nobody else uses `group`
// meanwhile.
std::filesystem::path write_checkpoint(const SaveRequest& request,
                                       const std::vector<LocalPiece>& pieces, const SaveRole& role,
                                       comm::Group& group, FileSystem& files = real_file_system());

// The same from homes and optimizer, on the calling thread. `optimizer` may be null
// (save_only_model). Collective over the world.
std::filesystem::path save(const std::filesystem::path& output_dir, int64_t step,
                           shard::UnitStore& store, optim::Optimizer* optimizer,
                           const SmallFiles& small_files, FileSystem& files = real_file_system());

// Fills homes and optimizer state from a checkpoint written at any world size and strategy. Of
// replicas, which hold the same, each reads a part and the others have it from there, so that all
// ranks together read a checkpoint about once. FormatError for missing tensors, other shapes, wrong
// checksums, on one replica at least: the others then throw comm::OtherRankFailed. Collective over
// the replicas, which may not come to it otherwise than together.
void load(PieceReader& reader, shard::UnitStore& store, optim::Optimizer* optimizer);

}  // namespace strata::checkpoint
