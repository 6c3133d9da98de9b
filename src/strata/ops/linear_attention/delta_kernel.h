// The delta rule's CPU kernels on raw memory (delta_rule.h); arguments are checked before.
// Owns: declarations. Never: tensors.
#pragma once

#include <cstdint>

#include "strata/ops/element.h"

namespace strata::ops::cpu {

struct DeltaArguments {
  Element type;     // of qkv, the result and their gradients
  const void* qkv;  // [tokens, channels()]
  const float* g;   // [tokens, value heads], as beta
  const float* beta;
  int64_t key_heads, value_heads, key_dim, value_dim;
  int64_t tokens, lanes, chunks, chunk_size;
  const int64_t* source;  // [lanes, chunks, chunk_size]
  const float* keeps;     // [lanes, chunks]

  int64_t ratio() const { return value_heads / key_heads; }
  int64_t key_channels() const { return key_heads * key_dim; }
  int64_t value_channels() const { return value_heads * value_dim; }
  int64_t channels() const { return 2 * key_channels() + value_channels(); }
  int64_t tasks() const { return lanes * key_heads; }
};

struct DeltaGradients {
  void* dqkv;
  float* dg;
  float* dbeta;
};

void delta_rule(const DeltaArguments& a, void* out);

// Floats that a thread of the backward pass keeps from chunk to chunk.
int64_t delta_workspace(const DeltaArguments& a);
// `workspace`: as many times that as threads take part, at most one a task.
void delta_rule_backward(const DeltaArguments& a, const void* dout, float* workspace,
                         const DeltaGradients& gradients);

}  // namespace strata::ops::cpu
