// FULL_STATE_DICT: the two files of whole tensors of a checkpoint. Owns: which tensor lies where in
// them, the layout, the proof that they can be loaded. Never: when a checkpoint is whole
// (sharded.h).
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "strata/checkpoint/export_files.h"
#include "strata/checkpoint/piece_file.h"

namespace strata::checkpoint {

// FULL_STATE_DICT: whole tensors in two files of the checkpoint, as from_pretrained() loads them;
// every rank writes its ranges of them, so that nothing is gathered anywhere.
struct WholeFiles {
  std::string weights;  // "model.safetensors", "adapter_model.safetensors"
  // Weight -> its keys in that file: a tied one may have two, and the manifest lists the first.
  // One without keys is no part of it and lies beside the optimizer's state.
  std::map<std::string, std::vector<std::string>> names;
  std::vector<std::pair<std::string, at::Tensor>> fixed = {};  // what does not train, of that file
  std::map<std::string, std::string> metadata{{"format", "pt"}};  // of that file
};
inline constexpr const char* kWholeOptimizerFile = "optimizer.safetensors";

// The three steps of writing them, each to be done by all ranks before the next.
// Tells rank 0 what this rank holds, so that it can lay the files out.
void announce_pieces(const std::filesystem::path& folder, int rank,
                     const std::vector<LocalPiece>& pieces, FileSystem& files);
// Rank 0: makes the files, with room for what was announced.
void create_whole_files(const std::filesystem::path& folder, const WholeFiles& whole,
                        int shard_ranks, FileSystem& files);
void write_whole_files(const std::filesystem::path& folder, const WholeFiles& whole, int rank,
                       const std::vector<LocalPiece>& pieces, const PieceWriting& how,
                       FileSystem& files);

// What from_pretrained() loads out of a checkpoint is read back as the result of a run is: keys,
// shapes, values, metadata, and no matrix of zeros (ZeroCheck). Throws IoError. Requires: the
// manifest.
void read_back_whole_files(const std::filesystem::path& folder, const WholeFiles& whole,
                           Trained trained);

}  // namespace strata::checkpoint
