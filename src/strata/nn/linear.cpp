#include "strata/nn/linear.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"
#include "strata/base/error.h"
#include "strata/libtorch/plain_view.h"
#include "strata/libtorch/without_autograd.h"
#include "strata/nn/attention/kept_attention.h"
#include "strata/nn/dora.h"
#include "strata/nn/function_state.h"
#include "strata/nn/weight_product.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LinearCall {
  std::vector<const Linear*> layers;
  DropoutDraw draw;
  bool has_residual;
  Purpose purpose;
  bool wants_output = true;
  at::Tensor known = {};  // what the output is, where it is not wanted; undefined: nothing
  std::function<at::Tensor()> remake = {};  // of x; empty: x is kept
};

LinearCall call_of(std::vector<const Linear*> layers, const Remakable& x, bool has_residual,
                   const ForwardContext& context) {
  LinearCall call{.layers = std::move(layers),
                  .draw = DropoutDraw::from(context),
                  .has_residual = has_residual,
                  .purpose = purpose_of(context)};
  if (context.pass.remakes_inputs) call.remake = x.remake;
  return call;
}

bool trains_on_input(const Linear& layer) {
  return layer.weight().requires_grad() ||
         (layer.low_rank() != nullptr && layer.low_rank()->trains());
}

// What the product is added to: residual, bias, their sum, or undefined.
at::Tensor start_value(const Linear& layer, const at::Tensor& x, const at::Tensor& residual) {
  const ActivityTimer timer(Activity::kElementWise);
  if (layer.bias() == nullptr) return residual.defined() ? residual.clone() : residual;
  const Parameter& held = *layer.bias();
  // A buffer keeps its own type.
  const at::Tensor bias =
      held.is_buffer() ? held.value().to(layer.weight().value().scalar_type()) : held.value();
  if (residual.defined()) return at::add(residual, bias);
  // A copy even of one row: the product is added into it.
  return bias.expand({x.size(0), layer.out_features()}).clone(at::MemoryFormat::Contiguous);
}

// What a layer's plain branch adds to its output.
struct BranchPart {
  at::Tensor hidden = {};  // A's output; undefined: there is no branch
  bool comes_first = false;
};

at::Tensor plain_product(const Linear& layer, const at::Tensor& x, const at::Tensor& residual,
                         const BranchPart& branch, Purpose purpose) {
  at::Tensor y = start_value(layer, x, residual);
  const bool is_started = y.defined();
  if (!is_started) y = at::empty({x.size(0), layer.out_features()}, x.options());
  if (branch.comes_first && !is_started) {
    start_with_low_rank(y, branch.hidden, *layer.low_rank());
    forward_product_into(y, x, layer.weight(), /*beta=*/1, purpose);
    return y;
  }
  forward_product_into(y, x, layer.weight(), is_started ? 1 : 0, purpose);
  if (branch.hidden.defined()) add_low_rank_(y, branch.hidden, *layer.low_rank());
  return y;
}

at::Tensor dora_product(const Linear& layer, const at::Tensor& x, const at::Tensor& residual,
                        const LinearCall& call, variable_list& saved) {
  at::Tensor y = start_value(layer, x, residual);
  if (!y.defined()) y = at::zeros({x.size(0), layer.out_features()}, x.options());
  DoraSaved of_layer = dora_forward_(y, x, layer.weight(), *layer.low_rank(),
                                     {.draw = call.draw,
                                      .purpose = call.purpose,
                                      .norms = dora_row_norms(layer.weight(), *layer.low_rank())});
  saved.insert(saved.end(), {of_layer.hidden, of_layer.rows, of_layer.norms});
  return y;
}

// A result that nobody reads: one element in memory.
at::Tensor shape_alone(const Linear& layer, const at::Tensor& x) {
  return at::empty_strided({x.size(0), layer.out_features()}, {0, 0}, x.options());
}

// DoRA works on its layer's whole output, by itself.
bool has_plain_branch(const Linear& layer) {
  return layer.low_rank() != nullptr && !layer.is_dora();
}

LowRankGroup plain_branches(const std::vector<const Linear*>& layers) {
  LowRankGroup group;
  for (const Linear* layer : layers) {
    if (has_plain_branch(*layer)) group.push_back(layer->low_rank());
  }
  return group;
}

// The layer's output, if it is wanted; appends what DoRA and VeRA need in backward.
at::Tensor run_layer(const Linear& layer, const at::Tensor& x, const at::Tensor& residual,
                     const BranchPart& branch, const LinearCall& call, variable_list& saved) {
  // DoRA's magnitude needs the output for its own gradient.
  if (layer.is_dora()) return dora_product(layer, x, residual, call, saved);
  at::Tensor y = call.wants_output      ? plain_product(layer, x, residual, branch, call.purpose)
                 : call.known.defined() ? call.known
                                        : shape_alone(layer, x);
  if (const Vera* vera = layer.vera(); vera != nullptr) {
    saved.push_back(call.wants_output ? vera_forward_(y, x, *vera, call.draw)
                                      : vera_hidden(x, *vera, call.draw));
  }
  return y;
}

// Of each layer, from A's output of all plain branches beside each other.
std::vector<BranchPart> branch_parts(const std::vector<const Linear*>& layers,
                                     const at::Tensor& hidden, bool comes_first) {
  std::vector<BranchPart> parts(layers.size());
  int64_t column = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!has_plain_branch(*layers[i])) continue;
    const int64_t rank = layers[i]->low_rank()->a.shape()[0];
    parts[i] = {plain_columns(hidden, column, rank), comes_first};
    column += rank;
  }
  return parts;
}

void write_base_gradients(const Linear& layer, const at::Tensor& dy, const at::Tensor& x) {
  Parameter& weight = layer.weight();
  if (weight.requires_grad() && weight.is_transposed()) weight.accumulate_grad_product(x, dy);
  if (weight.requires_grad() && !weight.is_transposed()) weight.accumulate_grad_product(dy, x);
  if (layer.bias() != nullptr && layer.bias()->requires_grad()) {
    // In fp32 whatever the type of dy: the sum must not depend on how tokens are spread over ranks.
    layer.bias()->accumulate_grad(dy.sum(at::IntArrayRef{0}, /*keepdim=*/false, at::kFloat));
  }
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  // Saves x (or how to make it) only where a weight or branch trains, then what DoRA and VeRA need
  // layer by layer, then A(x) of plain branches.
  static variable_list forward(AutogradContext* context, LinearCall call, const at::Tensor& x,
                               const std::optional<at::Tensor>& residual) {
    const WithoutAutograd plain;
    variable_list outputs, saved(1);
    bool needs_input = false;
    const LowRankGroup group = plain_branches(call.layers);
    const at::Tensor hidden = group.empty() ? at::Tensor() : low_rank_hidden(x, group, call.draw);
    const auto parts = branch_parts(call.layers, hidden, comes_first(x, group, call.draw));
    for (size_t i = 0; i < call.layers.size(); ++i) {
      outputs.push_back(
          run_layer(*call.layers[i], x, residual.value_or(at::Tensor()), parts[i], call, saved));
      needs_input |= trains_on_input(*call.layers[i]);
    }
    if (hidden.defined()) saved.push_back(hidden);
    call.known = at::Tensor();  // kept by whoever reads it
    if (!needs_input) call.remake = nullptr;
    if (needs_input && !call.remake) saved[0] = x;
    context->save_for_backward(std::move(saved));
    save_state(context, std::move(call));
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto call = take_state<LinearCall>(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor x = call.remake ? call.remake() : saved[0];
    const LowRankGroup group = plain_branches(call.layers);
    variable_list of_branches;  // the gradients of outputs with a plain branch
    for (size_t i = 0; i < call.layers.size(); ++i) {
      if (has_plain_branch(*call.layers[i])) of_branches.push_back(gradients[i]);
    }
    at::Tensor dx;
    if (context->needs_input_grad(0)) {
      dx = at::empty({gradients[0].size(0), call.layers[0]->in_features()}, gradients[0].options());
    }
    const bool branches_first = dx.defined() && comes_first(dx, group, call.draw);
    const auto run_branches = [&](float beta) {
      low_rank_backward(of_branches, {x, saved.back()}, group, call.draw, dx, beta);
    };
    if (branches_first) run_branches(/*beta=*/0);
    float beta = branches_first ? 1 : 0;
    size_t next = 1;
    for (size_t i = 0; i < call.layers.size(); ++i) {
      const Linear& layer = *call.layers[i];
      const at::Tensor& dy = gradients[i];
      write_base_gradients(layer, dy, x);
      if (layer.is_dora()) {
        dora_backward(dy, x, {saved[next], saved[next + 1], saved[next + 2]}, layer.weight(),
                      *layer.low_rank(), call.draw, dx, beta);
        next += 3;
      } else {
        if (dx.defined()) multiply_by_weight_back_into(dx, dy, layer.weight(), beta);
        if (layer.vera() != nullptr) {
          vera_backward(dy, saved[next++], *layer.vera(), call.draw, dx);
        }
      }
      beta = 1;
    }
    if (!group.empty() && !branches_first) run_branches(/*beta=*/1);
    return {at::Tensor(), dx, call.has_residual ? gradients[0] : at::Tensor()};
  }
};

struct RescaleCall {
  Rescale* rescale;
};

struct RescaleFunction : torch::autograd::Function<RescaleFunction> {
  static at::Tensor forward(AutogradContext* context, const RescaleCall& call,
                            const at::Tensor& x) {
    context->save_for_backward({x});
    save_state(context, call);
    return rescaled(x, *call.rescale);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0];
    return {at::Tensor(),
            rescale_backward(gradients[0], x, *load_state<RescaleCall>(context).rescale)};
  }
};

at::Tensor on_input(const at::Tensor& x, Rescale* rescale) {
  const bool applies = rescale != nullptr && rescale->of_input;
  return applies ? RescaleFunction::apply(RescaleCall{rescale}, x) : x;
}

at::Tensor on_output(const at::Tensor& y, Rescale* rescale) {
  const bool applies = rescale != nullptr && !rescale->of_input;
  return applies ? RescaleFunction::apply(RescaleCall{rescale}, y) : y;
}

}  // namespace

Linear::Linear(std::string path, const Options& options)
    : path_(std::move(path)),
      weight_(std::make_shared<Parameter>(
          path_ + ".weight",
          options.transposed ? std::vector<int64_t>{options.in_features, options.out_features}
                             : std::vector<int64_t>{options.out_features, options.in_features},
          options.storage)) {
  if (options.transposed) weight_->set_transposed();
  if (options.bias) {
    bias_ = std::make_unique<Parameter>(path_ + ".bias", std::vector<int64_t>{options.out_features},
                                        options.storage);
  }
}

Linear::Linear(std::string path, std::shared_ptr<Parameter> tied_weight)
    : path_(std::move(path)), weight_(std::move(tied_weight)) {}

void Linear::attach_low_rank(std::unique_ptr<LowRankBranch> branch) {
  if (low_rank_ != nullptr) {
    throw InternalError(
        "layer \"{}\": found a low-rank branch attached, expected none; report "
        "this as a bug",
        path_);
  }
  low_rank_ = std::move(branch);
}

void Linear::append_parameters(std::vector<Parameter*>& list) const {
  list.push_back(weight_.get());
  if (bias_ != nullptr) list.push_back(bias_.get());
  if (low_rank_ != nullptr) low_rank_->append_parameters(list);
  if (vera_ != nullptr) list.insert(list.end(), {&vera_->b, &vera_->d});
  if (rescale_ != nullptr) list.push_back(&rescale_->factors);
  if (token_rows_) list.push_back(&token_rows_->rows());
}

at::Tensor Linear::forward(const at::Tensor& x, const ForwardContext& context) const {
  const Remakable input = on_input(x, rescale());
  const variable_list y =
      LinearFunction::apply(call_of({this}, input, /*has_residual=*/false, context), input.value,
                            std::optional<at::Tensor>());
  return on_output(y[0], rescale());
}

at::Tensor Linear::add_to(const at::Tensor& residual, const Remakable& x,
                          const ForwardContext& context, bool wants_output,
                          const at::Tensor& known) const {
  if (rescale_ != nullptr && !rescale_->of_input) return residual + forward(x.value, context);
  const Remakable input = rescale_ != nullptr ? Remakable(on_input(x.value, rescale())) : x;
  LinearCall call = call_of({this}, input, /*has_residual=*/true, context);
  call.wants_output = wants_output;
  call.known = known;
  return LinearFunction::apply(std::move(call), input.value,
                               std::optional<at::Tensor>(residual))[0];
}

at::Tensor Linear::forward_add_once(const Remakable& x, const at::Tensor& residual,
                                    const ForwardContext& context) const {
  KeptAttention* kept = context.pass.kept_attention;
  const bool scales_output = rescale_ != nullptr && !rescale_->of_input;
  if (kept == nullptr || is_dora() || scales_output) return forward_add(x, residual, context);
  if (kept->runs_again()) {
    return add_to(residual, x, context, /*wants_output=*/false, kept->take_sum());
  }
  const at::Tensor sum = forward_add(x, residual, context);
  kept->keep_sum(sum);
  return sum;
}

at::Tensor Linear::forward_add(const Remakable& x, const at::Tensor& residual,
                               const ForwardContext& context) const {
  return add_to(residual, x, context, /*wants_output=*/true);
}

at::Tensor Linear::forward_add_last(const Remakable& x, const at::Tensor& residual,
                                    const ForwardContext& context) const {
  return add_to(residual, x, context, context.pass.wants_output);
}

at::Tensor Linear::forward_last(const Remakable& x, const ForwardContext& context) const {
  if (rescale_ != nullptr && !rescale_->of_input) return forward(x.value, context);
  const Remakable input = rescale_ != nullptr ? Remakable(on_input(x.value, rescale())) : x;
  LinearCall call = call_of({this}, input, /*has_residual=*/false, context);
  call.wants_output = context.pass.wants_output;
  return LinearFunction::apply(std::move(call), input.value, std::optional<at::Tensor>())[0];
}

std::vector<at::Tensor> linear_shared_input(std::vector<const Linear*> layers, const Remakable& x,
                                            const ForwardContext& context) {
  const bool shares = std::none_of(layers.begin(), layers.end(), [](const Linear* layer) {
    return layer->rescale() != nullptr && layer->rescale()->of_input;
  });
  std::vector<at::Tensor> outputs;
  if (shares) {
    outputs = LinearFunction::apply(call_of(layers, x, /*has_residual=*/false, context), x.value,
                                    std::optional<at::Tensor>());
    for (size_t i = 0; i < layers.size(); ++i) {
      outputs[i] = on_output(outputs[i], layers[i]->rescale());
    }
  } else {
    for (const Linear* layer : layers) outputs.push_back(layer->forward(x.value, context));
  }
  return outputs;
}

}  // namespace strata::nn
