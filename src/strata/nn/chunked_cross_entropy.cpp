#include "strata/nn/chunked_cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "strata/base/error.h"
#include "strata/libtorch/memory_kind.h"
#include "strata/nn/weight_product.h"
#include "strata/ops/cross_entropy.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kChunkBytes = 16 << 20;
// Fewer rows would read the weight and its gradient too often for one pass of products.
constexpr int64_t kMinRows = 64;

struct LossCall {
  const Linear* output;
  DropoutDraw draw;
  at::Tensor targets;  // int64 [T]
  float scale;
  bool want_gradient;
};

// One chunk's logits in the compute type; A(x) where there is a branch.
struct ChunkLogits {
  at::Tensor logits;
  at::Tensor hidden;
};

ChunkLogits chunk_logits(const LossCall& call, const at::Tensor& h, const DropoutDraw& draw,
                         at::Tensor buffer) {
  const Linear& output = *call.output;
  multiply_by_weight_into(buffer, h, output.weight(), /*beta=*/0);
  if (output.bias() != nullptr) buffer.add_(output.bias()->value());
  if (output.low_rank() == nullptr) return {buffer, at::Tensor()};
  at::Tensor hidden = low_rank_forward_(buffer, h, *output.low_rank(), draw);
  return {buffer, hidden};
}

void chunk_backward(const LossCall& call, const at::Tensor& dlogits, const LowRankSaved& saved,
                    const DropoutDraw& draw, at::Tensor dh) {
  const Linear& output = *call.output;
  multiply_by_weight_back_into(dh, dlogits, output.weight(), /*beta=*/0);
  if (output.weight().requires_grad()) {
    output.weight().accumulate_grad_product(dlogits, saved.x);
  }
  if (output.bias() != nullptr && output.bias()->requires_grad()) {
    output.bias()->accumulate_grad(dlogits.sum(0));
  }
  if (output.low_rank() != nullptr) {
    low_rank_backward(dlogits, saved, *output.low_rank(), draw, dh);
  }
}

// Loss over all rows of h [R, hidden]; fills dh [R, hidden] where a gradient is wanted.
ops::CrossEntropySums loss_over_chunks(const LossCall& call, const at::Tensor& h, at::Tensor dh) {
  const int64_t rows = h.size(0), vocab = call.output->out_features();
  const int64_t bytes_a_row = vocab * static_cast<int64_t>(sizeof(float));
  const int64_t chunk = std::min(rows, std::max(kMinRows, kChunkBytes / bytes_a_row));
  const MemoryScope of_logits(MemoryKind::kLogits);
  const at::Tensor buffer = at::empty({chunk, vocab}, h.options());
  const at::Tensor buffer32 = h.scalar_type() == at::kFloat
                                  ? buffer
                                  : at::empty({chunk, vocab}, h.options().dtype(at::kFloat));
  ops::CrossEntropySums sums;
  for (int64_t start = 0; start < rows; start += chunk) {
    const int64_t length = std::min(chunk, rows - start);
    const DropoutDraw draw = call.draw.narrow(start, length);
    const at::Tensor x = h.narrow(0, start, length);
    const ChunkLogits result = chunk_logits(call, x, draw, buffer.narrow(0, 0, length));
    at::Tensor logits = buffer32.narrow(0, 0, length);
    if (!buffer32.is_same(buffer)) logits.copy_(result.logits);
    const ops::CrossEntropySums part = ops::cross_entropy_(
        logits, call.targets.narrow(0, start, length), call.scale, call.want_gradient);
    sums.loss += part.loss;
    sums.correct += part.correct;
    sums.entropy += part.entropy;
    sums.tokens += part.tokens;
    if (!call.want_gradient) continue;
    if (!buffer32.is_same(buffer)) result.logits.copy_(logits);
    chunk_backward(call, result.logits, {x, result.hidden}, draw, dh.narrow(0, start, length));
  }
  return sums;
}

// Untrained rows give no loss and no gradient: they are left out, and their dh is zero.
ops::CrossEntropySums loss_over_trained_rows(LossCall call, const at::Tensor& h, at::Tensor dh) {
  const at::Tensor trained = call.targets.ne(-100).nonzero().view(-1);
  if (trained.numel() == h.size(0) && trained.numel() > 0) return loss_over_chunks(call, h, dh);
  call.targets = call.targets.index_select(0, trained);
  const at::Tensor rows = trained.to(h.device());
  if (call.draw.token_keys.defined()) {
    call.draw.token_keys = call.draw.token_keys.index_select(0, rows);
  }
  at::Tensor trained_h = h.index_select(0, rows), trained_dh;
  if (rows.numel() == 0) {
    // The weights' gradients are still written once (I2): one row of zeros changes nothing else.
    trained_h = at::zeros({1, h.size(1)}, h.options());
    call.targets = at::full({1}, -100, call.targets.options());
    if (call.draw.token_keys.defined()) {
      call.draw.token_keys = at::zeros({1}, call.draw.token_keys.options());
    }
  }
  if (call.want_gradient) trained_dh = at::empty_like(trained_h);
  const ops::CrossEntropySums sums = loss_over_chunks(call, trained_h, trained_dh);
  if (call.want_gradient) {
    dh.zero_();
    if (rows.numel() > 0) dh.index_copy_(0, rows, trained_dh);
  }
  return sums;
}

struct LossFunction : torch::autograd::Function<LossFunction> {
  static at::Tensor forward(AutogradContext* context, const LossCall& call, const at::Tensor& h,
                            ops::CrossEntropySums* sums) {
    at::Tensor dh;
    if (call.want_gradient) dh = at::empty_like(h);
    *sums = loss_over_trained_rows(call, h, dh);
    if (call.want_gradient) context->save_for_backward({dh});
    return at::full({}, sums->loss * call.scale, h.options().dtype(at::kFloat));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    // Without data (the memory plan) there is nothing to check.
    const float upstream = gradients[0].is_meta() ? 1.0f : gradients[0].item<float>();
    if (upstream != 1.0f) {
      throw InternalError(
          "loss: found a backward that starts from {}, expected 1 because the "
          "gradients are already computed; scale the loss by loss_scale",
          upstream);
    }
    return {at::Tensor(), context->get_saved_variables()[0], at::Tensor()};
  }
};

}  // namespace

at::Tensor chunked_cross_entropy(const at::Tensor& h, const Linear& output,
                                 const ForwardContext& context) {
  const bool want_gradient = at::GradMode::is_enabled() && h.requires_grad();
  const LossCall call{&output, DropoutDraw::from(context), context.batch->targets,
                      context.loss_scale, want_gradient};
  ops::CrossEntropySums sums;
  at::Tensor loss = LossFunction::apply(call, h, &sums);
  if (context.sums != nullptr) {
    context.sums->loss += sums.loss;
    context.sums->correct += sums.correct;
    context.sums->entropy += sums.entropy;
    context.sums->tokens += sums.tokens;
  }
  return loss;
}

}  // namespace strata::nn
