// The state space of Mamba-2 over chunks of documents on CPUs, head by head, so that what a chunk
// makes on the way stays in the cache. Owns: forward and backward. Never: where documents lie in
// lanes (nn/linear_attention/document_lanes.h), GPUs (nn/linear_attention/state_space.cpp).
// Source: Dao and Gu 2024 ("Transformers are SSMs").
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "strata/ops/linear_attention/chunk_lanes.h"

namespace strata::ops {

struct StateSpaceShape {
  int64_t num_heads;
  int64_t head_dim;
  int64_t num_groups;  // divides the heads
  int64_t state_dim;

  int64_t channels() const { return num_heads * head_dim; }
  int64_t group_channels() const { return num_groups * state_dim; }  // of B, and of C
  int64_t heads_of_group() const { return num_heads / num_groups; }
};

// xbc [T, channels + 2 * group_channels], fp32 or bf16: x, B and C side by side; steps fp32 [T,
// heads]; rate (below 0) and skip fp32 [heads].
struct StateSpaceInputs {
  at::Tensor xbc, steps, rate, skip;
};

// [T, channels] in the type of xbc.
at::Tensor state_space(const StateSpaceInputs& in, const StateSpaceShape& shape,
                       const ChunkLanes& lanes);

// In the types of what they are gradients of.
struct StateSpaceGradients {
  at::Tensor dxbc, dsteps, drate, dskip;
};
// Memory: each thread keeps the states of a lane before its chunks, for an eighth of a group's
// heads; B's and C's gradients are fp32, at most eight of each.
StateSpaceGradients state_space_backward(const at::Tensor& dout, const StateSpaceInputs& in,
                                         const StateSpaceShape& shape, const ChunkLanes& lanes);

}  // namespace strata::ops
