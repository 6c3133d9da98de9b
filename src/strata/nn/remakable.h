// A layer's input together with a way to make it again, so that selective checkpointing need not
// keep it: the output of a norm or of a gated activation, which costs one pass over memory.
// Owns: that pair. Never: the choice; the layer that reads the input makes it (ForwardContext).
#pragma once

#include <functional>
#include <utility>

#include <ATen/core/Tensor.h>

namespace strata::nn {

// Memory: `remake` holds what the maker keeps for its own backward pass anyway.
struct Remakable {
  at::Tensor value;
  // The same bits as `value`, outside of autograd. To be called before the maker's own backward
  // pass, by each layer that reads the value. Empty: the value can only be kept.
  std::function<at::Tensor()> remake = {};

  Remakable(at::Tensor value) : value(std::move(value)) {}  // NOLINT: a plain tensor is one
  Remakable(at::Tensor value, std::function<at::Tensor()> remake)
      : value(std::move(value)), remake(std::move(remake)) {}
};

}  // namespace strata::nn
