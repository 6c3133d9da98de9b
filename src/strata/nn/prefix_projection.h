// The rows of a prefix as what a small network makes of shorter ones while they train (Li and Liang
// 2021): W2 tanh(W1 e + b1) + b2. Owns: those weights, the product and its gradient. Never: the
// attention that reads the rows, first values (adapters/). Source: PEFT
// tuners/prefix_tuning/model.py, PrefixEncoder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "strata/nn/parameter.h"

namespace strata::nn {

// Invariants: the first layer's forward pass calls project() before any layer reads result(); its
// backward pass, the last one, calls backward(). Between them the result's gradient gathers what
// the layers add.
class PrefixProjection {
 public:
  struct Sizes {
    int64_t count;   // rows
    int64_t input;   // columns of the shorter rows
    int64_t hidden;  // of the network
    int64_t output;  // columns of the result
  };
  // `base`: the beginning of the weights' names.
  PrefixProjection(const std::string& base, const Sizes& sizes);

  // [count, output]: it is stored nowhere, and is in no list of parameters.
  const std::shared_ptr<Parameter>& result() const { return result_; }
  // The embedding [count, input], then weight and bias of both layers, as PEFT orders them.
  std::vector<Parameter*> parameters();

  // Requires: the parameters are gathered. Also when a step is computed again.
  void project();
  // Writes the parameters' gradients. Requires: as above, and project() before.
  void backward();

  // The result, of the weights in the order of parameters().
  static at::Tensor rows_of(const std::vector<at::Tensor>& weights);

 private:
  Parameter embedding_, first_, first_bias_, second_, second_bias_;
  std::shared_ptr<Parameter> result_;
  at::Tensor hidden_;    // [count, hidden], of the last project()
  at::Tensor gradient_;  // fp32, of the result; undefined between steps
};

}  // namespace strata::nn
