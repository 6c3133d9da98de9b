// Typed data that an autograd function keeps from forward to backward beside its saved tensors.
// Owns: the carriage through AutogradContext. Never: tensors of the graph (save_for_backward).
#pragma once

#include <utility>

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

namespace strata::nn {

template <typename T>
struct FunctionState : torch::CustomClassHolder {
  explicit FunctionState(T value) : value(std::move(value)) {}
  T value;
};

// At most one state a function call.
template <typename T>
void save_state(torch::autograd::AutogradContext* context, T value) {
  context->saved_data["state"] =
      c10::IValue::make_capsule(c10::make_intrusive<FunctionState<T>>(std::move(value)));
}

// Requires: save_state<T>() in the forward of the same call, with the same T.
template <typename T>
const T& load_state(torch::autograd::AutogradContext* context) {
  const auto& slot = context->saved_data.at("state");
  return static_cast<const FunctionState<T>*>(slot.toCapsule().get())->value;
}

// The same, and the context lets go of it: for state that holds memory.
template <typename T>
T take_state(torch::autograd::AutogradContext* context) {
  const auto& slot = context->saved_data.at("state");
  T value = std::move(static_cast<FunctionState<T>*>(slot.toCapsule().get())->value);
  context->saved_data.clear();
  return value;
}

}  // namespace strata::nn
