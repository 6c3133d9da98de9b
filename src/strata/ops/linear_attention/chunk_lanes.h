// Where the tokens of documents lie for rules over chunks. Owns: the type. Never: who places them
// (nn/linear_attention/document_lanes.h).
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "strata/ops/linear_attention/chunk_rows.h"

namespace strata::ops {

// Documents in lanes; a chunk's tokens stand at its front.
struct ChunkLanes {
  int64_t num_lanes, num_chunks, chunk_size;  // at most cpu::kMostChunkTokens
  at::Tensor source;  // int64 [lanes * chunks * chunk_size], the token of each place; T: none
  at::Tensor keeps;   // fp32 [lanes, chunks], 0 where a chunk begins a document, else 1

  int64_t num_places() const { return num_lanes * num_chunks * chunk_size; }
};

}  // namespace strata::ops
