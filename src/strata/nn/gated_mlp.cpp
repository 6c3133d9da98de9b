#include "strata/nn/gated_mlp.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/libtorch/without_autograd.h"
#include "strata/ops/swiglu.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Gate {
  at::Tensor (*forward)(const at::Tensor& gate, const at::Tensor& up);
  void (*backward)(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up,
                   at::Tensor& dgate, at::Tensor& dup);
};
constexpr Gate kSwiglu{ops::swiglu, ops::swiglu_backward};
constexpr Gate kGeglu{ops::geglu, ops::geglu_backward};

template <const Gate& kGate>
struct GatedFunction : torch::autograd::Function<GatedFunction<kGate>> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate,
                            const at::Tensor& up) {
    const WithoutAutograd plain;
    context->save_for_backward({gate, up});
    return kGate.forward(gate, up);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    // Nobody else reads gate and up (linear layers save their inputs only), and a graph runs
    // backward once, so their memory takes the gradients.
    at::Tensor dgate = saved[0].detach(), dup = saved[1].detach();
    kGate.backward(gradients[0].contiguous(), saved[0], saved[1], dgate, dup);
    return {dgate, dup};
  }
};

struct Halves {
  at::Tensor gate, up;
};

Halves halves_of(const at::Tensor& gate_up) {
  const int64_t width = gate_up.size(1) / 2;
  return {gate_up.narrow(1, 0, width), gate_up.narrow(1, width, width)};
}

struct HalvesFunction : torch::autograd::Function<HalvesFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_up) {
    const WithoutAutograd plain;
    context->save_for_backward({gate_up});
    const auto [gate, up] = halves_of(gate_up);
    return ops::swiglu(gate, up);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    // As above, the memory of the saved tensor takes its gradient.
    const at::Tensor gate_up = context->get_saved_variables()[0].detach();
    auto [gate, up] = halves_of(gate_up);
    ops::swiglu_backward(gradients[0].contiguous(), gate, up, gate, up);
    return {gate_up};
  }
};

template <const Gate& kGate>
Remakable gated(const at::Tensor& gate, const at::Tensor& up) {
  const auto again = [gate = gate.detach(), up = up.detach()] { return kGate.forward(gate, up); };
  return {GatedFunction<kGate>::apply(gate, up), again};
}

}  // namespace

Remakable swiglu_of_halves(const at::Tensor& gate_up) {
  const auto again = [gate_up = gate_up.detach()] {
    const auto [gate, up] = halves_of(gate_up);
    return ops::swiglu(gate, up);
  };
  return {HalvesFunction::apply(gate_up), again};
}

Remakable swiglu(const at::Tensor& gate, const at::Tensor& up) { return gated<kSwiglu>(gate, up); }

Remakable geglu(const at::Tensor& gate, const at::Tensor& up) { return gated<kGeglu>(gate, up); }

}  // namespace strata::nn
