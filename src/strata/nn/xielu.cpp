#include "strata/nn/xielu.h"

#include <cmath>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/nn/function_state.h"
#include "strata/ops/xielu.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor wide(const Parameter& number) { return number.value().to(at::kFloat).view({1}); }

// `gradient`: of softplus of the parameter.
void write_gradient(Parameter& alpha, const at::Tensor& gradient) {
  if (!alpha.requires_grad()) return;
  alpha.accumulate_grad((gradient * at::sigmoid(wide(alpha))).view(alpha.shape()));
}

struct Alphas {
  Parameter* p;
  Parameter* n;
};

struct XieluFunction : torch::autograd::Function<XieluFunction> {
  static at::Tensor forward(AutogradContext* context, const Alphas& alphas, const at::Tensor& x,
                            const at::Tensor& numbers) {
    context->save_for_backward({x, numbers});
    save_state(context, alphas);
    return ops::xielu(x, numbers);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& alphas = load_state<Alphas>(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor x = saved[0].detach();
    const at::Tensor sums = ops::xielu_backward_(x, gradients[0].contiguous(), saved[1]);
    write_gradient(*alphas.p, sums.narrow(0, 0, 1));
    write_gradient(*alphas.n, sums.narrow(0, 1, 1));
    return {at::Tensor(), x, at::Tensor()};
  }
};

}  // namespace

Xielu::Xielu(const std::string& path, at::ScalarType storage)
    : alpha_p_(path + ".alpha_p", {1}, storage),
      alpha_n_(path + ".alpha_n", {1}, storage),
      beta_(path + ".beta", {}, storage),
      eps_(path + ".eps", {}, storage) {
  beta_.set_buffer();
  eps_.set_buffer();
}

void Xielu::append_parameters(std::vector<Parameter*>& list) {
  list.insert(list.end(), {&alpha_p_, &alpha_n_, &beta_, &eps_});
}

at::Tensor Xielu::numbers() const {
  const at::Tensor beta = wide(beta_);
  return at::cat(
      {at::softplus(wide(alpha_p_)), at::softplus(wide(alpha_n_)).add_(beta), beta, wide(eps_)});
}

Remakable Xielu::forward(const at::Tensor& x) {
  const at::Tensor by = numbers();
  const auto again = [kept = x.detach(), by] { return ops::xielu(kept, by); };
  return {XieluFunction::apply(Alphas{&alpha_p_, &alpha_n_}, x, by), again};
}

std::optional<double> Xielu::initial_value(const std::string& name) {
  // Whose softplus is 0.8, and with beta 0.8.
  if (name.ends_with(".act_fn.alpha_p")) return std::log(std::expm1(0.8));
  if (name.ends_with(".act_fn.alpha_n")) return std::log(std::expm1(0.8 - 0.5));
  if (name.ends_with(".act_fn.beta")) return 0.5;
  if (name.ends_with(".act_fn.eps")) return -1e-6;
  return std::nullopt;
}

}  // namespace strata::nn
