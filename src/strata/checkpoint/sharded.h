// Saves and loads the state of training as `checkpoint-N` folders: every rank writes and reads only
// its own pieces. Owns: the protocol that makes a checkpoint exist whole or not at all. Never: the
// full export (export.h) or what the small JSON files mean (train/).
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "strata/optim/optimizer.h"
#include "strata/shard/unit_store.h"

namespace strata::checkpoint {

// What is written beside the tensors: file name -> content ("trainer_state.json" -> ...).
using SmallFiles = std::map<std::string, std::string>;

// Writes OUTPUT_DIR/checkpoint-STEP: temporary folder, every file synced, one rename, then the
// pointer file `latest`. Trained weights and their optimizer state only: frozen weights are in the
// base checkpoint already. `optimizer` may be null (save_only_model).
// Collective over the world; fails on all ranks if it fails on one, and then leaves nothing.
std::filesystem::path save(const std::filesystem::path& output_dir, int64_t step,
                           shard::UnitStore& store, optim::Optimizer* optimizer,
                           const SmallFiles& small_files);

// Fills homes and moments from a checkpoint written at any world size and strategy.
// Collective over the world. FormatError for missing tensors, other shapes, wrong checksums.
void load(const std::filesystem::path& folder, shard::UnitStore& store,
          optim::Optimizer* optimizer);

// Checkpoints of an output folder by ascending step; unfinished ones are not among them.
std::vector<std::filesystem::path> list(const std::filesystem::path& output_dir);

// "true": the newest whole checkpoint of the output folder; otherwise the path itself.
// Throws ConfigError with the reference's words when there is none.
std::filesystem::path resolve(const std::string& resume_from,
                              const std::filesystem::path& output_dir);

// Removes the oldest checkpoints until `limit` are left; never the newest and never `keep`.
// To be called by one rank.
void rotate(const std::filesystem::path& output_dir, int64_t limit,
            const std::optional<std::filesystem::path>& keep = {});

}  // namespace strata::checkpoint
