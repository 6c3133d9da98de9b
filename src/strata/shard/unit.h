// How the parameters of a model are laid out for sharding: units, their flat segments, and which
// piece of which tensor is stored on which rank. Pure arithmetic; owns no memory and never
// communicates.
#pragma once

#include <string>
#include <vector>

#include "strata/models/model.h"

namespace strata::shard {

// Every tensor of a segment starts at a multiple of this many elements (64 bytes of fp32, and of
// bytes), so that vector loads of the matrix products stay aligned in a gathered slot.
inline constexpr int64_t kAlignment = 16;

// Trained tensors and shards start at multiples of the block of 8-bit optimizer state, so that no
// block of a tensor is split between ranks and the state does not depend on their number.
inline constexpr int64_t kTrainableAlignment = 256;

struct Extent {
  nn::Parameter* parameter;
  int64_t begin;  // first element in the flat segment
};

// Quantised weights are a segment of bytes: positions and lengths count elements of the storage
// type, so bytes there, and a piece is a range of the tensor's bytes (ops/quant/format.h).
//
// Parameters of one unit that share storage type and trainability, as one flat array; those that
// keep their type (nn::Parameter::keeps_type) by themselves. Rank r of a
// shard group of n holds elements [r * shard_numel, (r + 1) * shard_numel): a contiguous flat range
// of every tensor, possibly empty.
// Invariants: numel == n * shard_numel; extents ascend and do not overlap.
struct Segment {
  bool trainable = false;
  at::ScalarType storage = at::kFloat;
  bool keeps_type = false;  // in the slot, too
  std::vector<Extent> extents;
  int64_t numel = 0;
  int64_t shard_numel = 0;
};

// The part of a tensor that is stored on one rank.
struct Piece {
  nn::Parameter* parameter;
  int64_t tensor_begin;  // first stored element of the piece in the flattened tensor
  int64_t shard_begin;   // its place in the rank's shard
  int64_t length;        // elements, > 0
};

struct Unit {
  std::string name;
  std::vector<Segment> segments;  // frozen before trainable
  bool trains() const;
  int64_t numel() const;  // of the tensors, without padding
};

// Units of a model and which of them each block of the chain needs. A tied weight belongs to the
// unit of the first block that uses it, and later users need that unit too (I3).
struct Partition {
  std::vector<Unit> units;
  std::vector<std::vector<int>> block_units;  // [blocks], ascending
};

// Which blocks of the chain share a unit. A unit is always a run of whole blocks.
struct WrapPolicy {
  enum class Kind {
    kBlock,  // TRANSFORMER_BASED_WRAP: a unit per block (embedding, each layer, norm with head)
    kSize,   // SIZE_BASED_WRAP: neighbours share one until it holds `min_num_params`
    kNone,   // NO_WRAP: the whole model is one
  };
  Kind kind = Kind::kBlock;
  // kBlock: the layers' classes that are units of their own, under the reference's names; layers of
  // other classes share a unit with their neighbours. Empty: every layer.
  std::vector<std::string> layer_classes = {};
  int64_t min_num_params = 0;
};

// Requires: requires_grad and storage types of the parameters are final.
// Throws ConfigError for a class that no block of the model has.
Partition partition_model(models::Model& model, int shard_group_size,
                          const WrapPolicy& policy = {});

// What of the segment is stored on `rank` of the shard group.
std::vector<Piece> pieces_of(const Segment& segment, int rank);

}  // namespace strata::shard
