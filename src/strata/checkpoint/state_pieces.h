// The training state of one rank as a list of named flat pieces: what a checkpoint stores and what
// loading fills. Owns: names and order. Never: files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/adapters/lora.h"
#include "strata/optim/optimizer.h"
#include "strata/shard/unit_store.h"

namespace strata::checkpoint {

// One piece of one saved tensor on this rank.
struct LocalPiece {
  std::string tensor;          // "exp_avg/model.norm.weight"
  std::vector<int64_t> shape;  // of the whole
  int64_t begin = 0;           // its first element in the flattened whole
  at::Tensor data;             // flat view of a home or of the optimizer's state
  bool rests_in_file = false;  // which is the map of a file: its pages may be forgotten
};

// Trained weights ("parameter/NAME") and, unless `optimizer` is null, its state ("KIND/NAME").
std::vector<LocalPiece> local_pieces(shard::UnitStore& store, optim::Optimizer* optimizer);

// Weights that do not train and are saved all the same, as PEFT does with the embedding and the
// output layer of a grown vocabulary, and their keys in the adapter's file.
using FrozenWeights = std::map<const nn::Parameter*, std::vector<std::string>>;

// Views of their homes, "frozen/KEY" for every key. They never change: a snapshot needs no copy.
std::vector<LocalPiece> frozen_pieces(shard::UnitStore& store, const FrozenWeights& weights);
inline constexpr const char* kFrozen = "frozen";

// Whole weights of the projection that makes a prefix; none where the adapter has no such.
// Collective over the world.
std::vector<at::Tensor> projection_weights(shard::UnitStore& store,
                                           const adapters::LoraAdapter& adapter);
// The rows that they make, as PEFT saves them ("frozen/prompt_embeddings"): the first shard's.
std::vector<LocalPiece> projected_prefix(shard::UnitStore& store,
                                         const std::vector<at::Tensor>& weights);

// The trained weights with NaN or infinity among them, by their parameters' names. An update may
// spoil weights, which otherwise only the loss of the next step shows.
std::vector<std::string> not_finite(const std::vector<LocalPiece>& pieces);

uint64_t size_bytes(const std::vector<LocalPiece>& pieces);

// Memory for a snapshot of these pieces, every page of it taken from the system.
std::vector<LocalPiece> snapshot_memory(const std::vector<LocalPiece>& pieces);

// The same pieces in host memory of their own. Takes over the buffers of `reused`, a snapshot of
// the same pieces that nobody reads any more, or none. Memory: size_bytes() on the host.
std::vector<LocalPiece> snapshot(const std::vector<LocalPiece>& pieces,
                                 std::vector<LocalPiece> reused);

}  // namespace strata::checkpoint
