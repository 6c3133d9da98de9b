// Whether the disks have room for everything that a run lets rest in files, judged over all ranks
// before any of them takes memory. Owns: nothing. Never: reserves; shard/home_file.h does.
#pragma once

#include <cstdint>

#include "strata/comm/group.h"
#include "strata/config/run_config.h"

namespace strata::train {

// What one rank will have in files.
struct OffloadBytes {
  uint64_t parameters = 0, state = 0, activations = 0;
};

// Throws IoError, on every rank alike, when what the ranks of one machine will have on a file
// system is more than it has room for. What several machines have on one that they share is not
// summed up: the files themselves find that out when they are made. Collective.
void require_offload_room(const config::ShardConfig& config, const OffloadBytes& own,
                          comm::Group& world);

}  // namespace strata::train
