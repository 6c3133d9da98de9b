// What every update rule offers: a step over the homes of a UnitStore, and its state as named
// tensors that checkpoints save and load. Owns: the count of steps. Never: parameters or gradients;
// those rest in their homes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/nn/parameter.h"

namespace strata::optim {

// This rank's part of one tensor of an optimizer's state. Of most tensors `shape` is the weight's
// own; block-wise scales have one of their own. Any element type.
struct StateTensor {
  std::string name;  // "exp_avg"; with the weight's name the key in checkpoints
  const nn::Parameter* parameter = nullptr;
  std::vector<int64_t> shape;  // of the whole tensor over all ranks
  int64_t begin = 0;           // first element of the flattened whole that rests here
  at::Tensor data;             // [n], flat and contiguous; writing to it changes the state
  bool rests_in_file = false;  // `data` is the map of a file (shard::HomeFile)
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Updates every trained shard in place. `gradient_scale` multiplies gradients first.
  virtual void step(double learning_rate, double gradient_scale) = 0;

  // Takes the memory and the way over files that a step takes, and changes nothing.
  virtual void rehearse() {}

  // Everything beside the count of steps that the next step depends on, in the same order every
  // time. The parts of all ranks of a shard group tile each whole tensor.
  virtual std::vector<StateTensor> state() = 0;

  int64_t num_steps() const { return num_steps_; }
  void set_num_steps(int64_t steps) { num_steps_ = steps; }

 protected:
  int64_t num_steps_ = 0;
};

}  // namespace strata::optim
