// Documents cut into chunks, and the chunks in lanes that run side by side: linear attention goes
// from chunk to chunk, so that few long lanes would leave a device idle and one lane a document
// would compute padding. Documents begin with a chunk of their own, or after one another where the
// rule over chunks can tell them apart (packed_lanes.cpp). Owns: the places, and putting tokens
// there. Never: what runs over them (gated_delta_rule.h, state_space_chunks.h).
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/nn/batch.h"
#include "strata/ops/linear_attention/chunk_lanes.h"

namespace strata::nn {

// T tokens; lanes * chunks * chunk_size places, those after a document's end, or a lane's, empty.
struct DocumentLanes {
  int64_t num_lanes;
  int64_t num_chunks;      // of each lane
  int64_t chunk_size;      // a power of two, at most 64
  at::Tensor source = {};  // int64 [places], the token of each; T where it is empty
  at::Tensor place = {};   // int64 [T], the place of each token
  at::Tensor keeps = {};   // fp32 [lanes, chunks], 0 where a chunk begins a document, else 1
  // For packed lanes with several documents, else undefined, with n = lanes * chunks: bool [n,
  // chunk, chunk], whether two places are of one document; bool [n, chunk], whether that is the
  // document before the chunk (before a lane's first: whatever comes before it).
  at::Tensor is_same = {}, goes_on = {};

  int64_t num_places() const { return num_lanes * num_chunks * chunk_size; }
  // Requires lanes that are not packed, or of one document each.
  ops::ChunkLanes chunks() const { return {num_lanes, num_chunks, chunk_size, source, keeps}; }
};

// Tokens of a chunk where none of what it is made for has more than `most_tokens`: a power of two.
int64_t chunk_size_for(int64_t most_tokens);

// `offsets` as in Batch. Longest documents first, each into the first lane with room.
DocumentLanes make_lanes(const std::vector<int64_t>& offsets, at::Device device);

// Documents after one another in lanes of about one length, at least that of the longest document
// and of eight chunks where there are as many tokens; `keeps` are ones.
DocumentLanes make_packed_lanes(const std::vector<int64_t>& offsets, at::Device device);

// x [T, ...] in fp32 at the places of the lanes, zero in empty ones: [lanes, chunks, chunk, ...].
at::Tensor in_lanes(const at::Tensor& x, const DocumentLanes& lanes);

// Threads: one at a time. Memory: the lanes of the last batch asked for, which layers share.
class LaneTable {
 public:
  // Packed ones on GPUs alone: what a CPU computes ends with a chunk's last token.
  enum class Kind { kOwnChunks, kPacked };
  explicit LaneTable(Kind kind = Kind::kOwnChunks) : kind_(kind) {}
  const DocumentLanes& of(const Batch& batch);

 private:
  Kind kind_;
  DocumentLanes lanes_ = {};
  at::Tensor positions_;  // held, so that its identity stays unique
  uint32_t positions_version_ = 0;
};

}  // namespace strata::nn
