// What must hold before the first step so that no later save can fail for want of it: the folder is
// one and writable for all ranks, the disk has room, memory holds the copies. Owns: nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "strata/checkpoint/state_pieces.h"
#include "strata/train/setup/trainee.h"

namespace strata::train {

// On every rank but 0, after rank 0 has created the folder and its lock, which says `owner`: the
// rank sees the same folder and can write to it. Throws IoError.
void require_shared_folder(const std::filesystem::path& folder, int rank, const std::string& owner);

struct SavePlan {
  uint64_t checkpoint_bytes = 0;  // of one checkpoint, all ranks together
  uint64_t result_bytes = 0;      // model or adapter; 0: none is written
  int64_t num_checkpoints = 0;    // at once on the disk, beside those that are there already
  uint64_t stop_bytes = 0;        // of the checkpoint that a request to stop makes
};

// Throws IoError when the file system of `folder` has less room than the plan needs.
void require_disk_space(const std::filesystem::path& folder, const SavePlan& plan);

// What a request to stop would lack, as a warning: its checkpoint comes in the place of the last
// one and of the result, but may be larger. Nothing where there is room. Requires:
// require_disk_space().
std::optional<std::string> shortage_for_stop(const std::filesystem::path& folder,
                                             const SavePlan& plan);

// A file of `bytes` that this process may not write (ulimit -f), as a warning; nothing where it
// may.
std::optional<std::string> file_size_warning(uint64_t bytes);

// `frozen`: what is saved beside the weights that train.
uint64_t checkpoint_bytes(Trainee& trainee, bool with_optimizer,
                          const checkpoint::FrozenWeights& frozen);
// `type`: of the files; nothing: as weights rest.
uint64_t result_bytes(const Trainee& trainee, std::optional<at::ScalarType> type);

// Host memory that a rank takes at most while the result is written: what is gathered at once.
uint64_t result_memory_bytes(const Trainee& trainee);

// A number for a text that tells machines or file systems apart: 48 bits, which a double holds
// exactly; never 0.
uint64_t id_of(const std::string& text);

// What one rank's copy of its state takes, and what the machine and the container it runs in can
// give without swapping. Whoever has the same id draws on the same memory.
struct CopyMemory {
  uint64_t copy_bytes = 0;
  uint64_t machine_id = 0;
  uint64_t machine_bytes = 0;  // 0: it does not say
  uint64_t container_id = 0;   // 0: no limit
  uint64_t container_bytes = 0;
};
CopyMemory copy_memory(uint64_t copy_bytes);

// What all ranks' copies together would lack, in words: "0.1 MB free in the container of rank 2,
// expected 0.4 MB for the copies of its 2 ranks". Nothing when there is room. `for_one` and
// `for_several`: what the memory is for.
std::optional<std::string> find_shortage(const std::vector<CopyMemory>& ranks,
                                         const std::string& for_one = "copy",
                                         const std::string& for_several = "copies");

// The memory of every rank, in rank order. Collective.
std::vector<CopyMemory> gather_copy_memory(const CopyMemory& own, comm::Group& world);

}  // namespace strata::train
