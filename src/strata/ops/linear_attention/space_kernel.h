// The state space's CPU kernels on raw memory (state_space.h); arguments are checked before.
// Owns: declarations. Never: tensors.
#pragma once

#include <algorithm>
#include <cstdint>

#include "strata/ops/element.h"

namespace strata::ops::cpu {

struct SpaceArguments {
  Element type;        // of xbc, the result and their gradients
  const void* xbc;     // [tokens, channels + 2 * groups * state_dim]
  const float* steps;  // [tokens, heads]
  const float* rate;   // [heads], below 0
  const float* skip;   // [heads]
  int64_t heads, head_dim, groups, state_dim;
  int64_t tokens, lanes, chunks, chunk_size;
  const int64_t* source;  // [lanes, chunks, chunk_size]
  const float* keeps;     // [lanes, chunks]

  // Heads that a task computes, some or all of a group's: enough tasks for many threads, whatever
  // their number, and few sums of what a group shares.
  int64_t heads_of_task() const { return (heads_of_group() + kMostBlocks - 1) / kMostBlocks; }
  int64_t heads_of_group() const { return heads / groups; }
  int64_t blocks() const { return (heads_of_group() + heads_of_task() - 1) / heads_of_task(); }
  int64_t tasks() const { return lanes * groups * blocks(); }
  int64_t channels() const { return heads * head_dim; }
  int64_t row_channels() const { return channels() + 2 * groups * state_dim; }

  static constexpr int64_t kMostBlocks = 8;
};

// What task `task` of SpaceArguments::tasks() computes.
struct HeadBlock {
  int64_t lane, group, block;
  int64_t first, heads;
};
inline HeadBlock head_block(const SpaceArguments& a, int64_t task) {
  const int64_t block = task % a.blocks(), group = task / a.blocks() % a.groups;
  const int64_t begin = block * a.heads_of_task();
  return {task / a.blocks() / a.groups, group, block, group * a.heads_of_group() + begin,
          std::min(a.heads_of_task(), a.heads_of_group() - begin)};
}

struct SpaceGradients {
  void* dxbc;  // of x; B and C are those of `shared`
  float* dsteps;
  float* drate;  // [lanes, heads], as dskip
  float* dskip;
  float* shared;  // [blocks, tokens, 2 * groups * state_dim], of B and C
};

void state_space(const SpaceArguments& a, void* out);

// Floats that a thread of the backward pass keeps from chunk to chunk.
int64_t space_workspace(const SpaceArguments& a);
// `workspace`: as many times that as threads take part, at most one a task.
void state_space_backward(const SpaceArguments& a, const void* dout, float* workspace,
                          const SpaceGradients& gradients);

}  // namespace strata::ops::cpu
