// The training state of one rank as a list of named flat pieces: what a checkpoint stores and what
// loading fills. Owns: names and order. Never: files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/optim/optimizer.h"
#include "strata/shard/unit_store.h"

namespace strata::checkpoint {

// One piece of one saved tensor on this rank.
struct LocalPiece {
  std::string tensor;          // "exp_avg/model.norm.weight"
  std::vector<int64_t> shape;  // of the whole
  int64_t begin = 0;           // its first element in the flattened whole
  at::Tensor data;             // flat view of a home or of the optimizer's state
};

// Trained weights ("parameter/NAME") and, unless `optimizer` is null, its state ("KIND/NAME").
std::vector<LocalPiece> local_pieces(shard::UnitStore& store, optim::Optimizer* optimizer);

uint64_t size_bytes(const std::vector<LocalPiece>& pieces);

// Memory for a snapshot of these pieces, every page of it taken from the system.
std::vector<LocalPiece> snapshot_memory(const std::vector<LocalPiece>& pieces);

// The same pieces in host memory of their own. Takes over the buffers of `reused`, a snapshot of
// the same pieces that nobody reads any more, or none. Memory: size_bytes() on the host.
std::vector<LocalPiece> snapshot(const std::vector<LocalPiece>& pieces,
                                 std::vector<LocalPiece> reused);

}  // namespace strata::checkpoint
