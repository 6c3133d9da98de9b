#include "strata/nn/chunked_cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "strata/base/error.h"
#include "strata/base/labels.h"
#include "strata/libtorch/host_copies.h"
#include "strata/libtorch/memory_kind.h"
#include "strata/nn/chunk_logits.h"
#include "strata/nn/logit_numbers.h"
#include "strata/nn/loss_buffers.h"
#include "strata/nn/preference.h"
#include "strata/nn/rescale.h"
#include "strata/ops/cross_entropy.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LossCall {
  OutputLayer output;
  DropoutDraw draw;
  at::Tensor targets;  // int64 [T]
  float scale;
  bool want_gradient;
  ops::CrossEntropyOptions options;
  Preference* preference = nullptr;  // its documents' losses are learnt in the place of the tokens'
  at::Tensor row_scales = {};        // fp32 [R]: what each row's gradient counts; undefined: 1
};

// What is asked of the logits of each row beside its loss: fp32 [R] each; undefined: nobody asked.
struct RowNumbers {
  at::Tensor mean_logits = {}, log_squares = {};
};

RowNumbers numbers_asked_for(const LossCall& call, const at::Tensor& h) {
  const bool is_second_pass = call.row_scales.defined();
  if (is_second_pass || call.preference == nullptr) return {};
  const auto number_a_row = [&](bool is_wanted) {
    return is_wanted ? at::empty({h.size(0)}, h.options().dtype(at::kFloat)) : at::Tensor();
  };
  return {number_a_row(call.preference->wants_mean_logits()),
          number_a_row(call.preference->wants_log_squares())};
}

// Takes the numbers of the rows from `start` on, whose logits these are.
void take_numbers(const RowNumbers& asked, const at::Tensor& logits, float softcap, int64_t start) {
  const auto of_rows = [&](const at::Tensor& all) { return all.narrow(0, start, logits.size(0)); };
  if (asked.mean_logits.defined()) take_logit_means(logits, softcap, of_rows(asked.mean_logits));
  if (asked.log_squares.defined()) take_log_squares(logits, softcap, of_rows(asked.log_squares));
}

// What each row gave, in the host's memory, and how many of them were taken at once.
struct ChunkedRows {
  at::Tensor rows;
  int64_t chunk;
  RowNumbers numbers;
};

void add(ops::CrossEntropySums& sums, const ops::CrossEntropySums& part) {
  sums.loss += part.loss;
  sums.correct += part.correct;
  sums.entropy += part.entropy;
  sums.tokens += part.tokens;
}

// Chunk by chunk, as they were summed before they could be waited for together.
ops::CrossEntropySums sum_chunks(const ChunkedRows& found) {
  ops::CrossEntropySums sums;
  for (int64_t start = 0; start < found.rows.size(0); start += found.chunk) {
    const int64_t length = std::min(found.chunk, found.rows.size(0) - start);
    add(sums, ops::sum_cross_entropy_rows(found.rows.narrow(0, start, length)));
  }
  return sums;
}

// The sum of what was asked of each row; 0 where nothing was.
double sum_of(const at::Tensor& of_rows, int64_t first, int64_t last) {
  if (!of_rows.defined() || first == last) return 0;
  return of_rows.narrow(0, first, last - first).sum(at::kDouble).item<double>();
}

// Loss over all rows of h [R, hidden]; fills dh [R, hidden] where a gradient is wanted. The host
// waits for a device once, after the last chunk.
ChunkedRows loss_over_chunks(const LossCall& call, const at::Tensor& h, at::Tensor dh) {
  const int64_t rows = h.size(0);
  const Linear& output = *call.output.linear;
  const MemoryScope of_logits(MemoryKind::kLogits);
  const LossBuffers buffers = make_loss_buffers(h, output, call.want_gradient);
  at::Tensor targets = call.targets;
  if (h.is_cuda()) {
    ops::check_targets(targets, output.out_features());
    targets = to_device(targets, h.device());
  }
  const RowNumbers numbers = numbers_asked_for(call, h);
  Rescale* rescale = output.rescale();
  Rescale* of_input = rescale != nullptr && rescale->of_input ? rescale : nullptr;
  for (int64_t start = 0; start < rows; start += buffers.chunk) {
    const int64_t length = std::min(buffers.chunk, rows - start);
    const DropoutDraw draw = call.draw.narrow(start, length);
    const at::Tensor rows_h = h.narrow(0, start, length);
    const at::Tensor x = of_input != nullptr ? rescaled(rows_h, *of_input) : rows_h;
    const ChunkLogits result =
        chunk_logits(call.output, x, draw, buffers.logits.narrow(0, 0, length), call.want_gradient);
    const bool is_widened = !buffers.widened.is_same(buffers.logits);
    at::Tensor logits = buffers.widened.narrow(0, 0, length);
    if (is_widened) logits.copy_(result.logits);
    take_numbers(numbers, logits, call.options.softcap, start);
    ops::cross_entropy_rows_(logits, targets.narrow(0, start, length), call.scale,
                             call.want_gradient, buffers.rows.narrow(0, start, length),
                             call.options);
    if (!call.want_gradient) continue;
    if (call.row_scales.defined()) {
      logits.mul_(call.row_scales.narrow(0, start, length).unsqueeze(1));
    }
    if (is_widened) result.logits.copy_(logits);
    at::Tensor rows_dh = dh.narrow(0, start, length);
    chunk_backward(call.output, x, result, draw, rows_dh);
    if (of_input != nullptr) rows_dh.copy_(rescale_backward(rows_dh, rows_h, *of_input));
  }
  const auto on_host = [](const at::Tensor& found) {
    return found.defined() && found.is_cuda() ? found.cpu() : found;
  };
  return {on_host(buffers.rows),
          buffers.chunk,
          {on_host(numbers.mean_logits), on_host(numbers.log_squares)}};
}

bool trains(const Linear& layer) {
  std::vector<Parameter*> parameters;
  layer.append_parameters(parameters);
  return layer.token_rows() != nullptr ||
         std::ranges::any_of(parameters, [](const Parameter* one) { return one->requires_grad(); });
}

// The rows of `h` that each document has: [D + 1], from which row on. `trained`: their places in
// the micro-batch, rising.
std::vector<int64_t> document_rows(const at::Tensor& trained, const std::vector<int64_t>& offsets) {
  const int64_t* first = trained.const_data_ptr<int64_t>();
  const int64_t* last = first + trained.numel();
  std::vector<int64_t> starts;
  for (const int64_t offset : offsets) {
    starts.push_back(std::lower_bound(first, last, offset) - first);
  }
  return starts;
}

// Infinite where fp32 ends: libtorch refuses what it cannot hold, and who looks at the gradients
// names step and rows.
double in_fp32(double value) {
  constexpr double kMost = std::numeric_limits<float>::max();
  return std::abs(value) > kMost ? std::copysign(HUGE_VAL, value) : value;
}

// Fills what the head tells of each document; `tails`: where each one's tail begins. Returns the
// sums over all of them.
ops::CrossEntropySums tell_documents(Preference& learnt, const ChunkedRows& found,
                                     const std::vector<int64_t>& starts,
                                     const std::vector<int64_t>& tails) {
  ops::CrossEntropySums sums;
  const auto sums_of = [&](int64_t first, int64_t last) {
    return ops::sum_cross_entropy_rows(found.rows.narrow(0, first, last - first));
  };
  learnt.documents.clear();
  for (size_t d = 0; d + 1 < starts.size(); ++d) {
    const ops::CrossEntropySums document = sums_of(starts[d], starts[d + 1]);
    const bool has_tail = tails[d] < starts[d + 1];
    learnt.documents.push_back({-document.loss,
                                has_tail ? -sums_of(tails[d], starts[d + 1]).loss : 0.0,
                                document.correct, document.entropy, document.tokens,
                                sum_of(found.numbers.mean_logits, starts[d], starts[d + 1]),
                                sum_of(found.numbers.log_squares, starts[d], starts[d + 1])});
    add(sums, document);
  }
  return sums;
}

// [R] on the host: what the gradient of each row's loss counts in that of the documents' losses.
at::Tensor scales_of_rows(const DocumentSlopes& losses, const std::vector<int64_t>& starts,
                          const std::vector<int64_t>& tails, int64_t rows, float loss_scale) {
  at::Tensor scales = at::zeros({rows}, at::kFloat);
  // The gradient is of -log p.
  const auto fill = [&](int64_t first, int64_t last, double slope) {
    scales.narrow(0, first, last - first).fill_(in_fp32(-slope * static_cast<double>(loss_scale)));
  };
  for (size_t d = 0; d + 1 < starts.size(); ++d) {
    fill(starts[d], tails[d], losses.slopes[d]);
    fill(tails[d], starts[d + 1], losses.tail_slopes[d]);
  }
  return scales;
}

// The documents' losses in the place of the tokens': what a token's gradient counts is known when
// the log-probabilities of whole documents are. A frozen layer's is scaled then; one that trains
// has taken it into its own by that time, so that it makes its logits twice.
ops::CrossEntropySums loss_over_documents(LossCall call, const at::Tensor& h, at::Tensor dh,
                                          const std::vector<int64_t>& starts) {
  Preference& learnt = *call.preference;
  const float loss_scale = call.scale;
  const bool learns = call.want_gradient;
  const bool twice = learns && trains(*call.output.linear);
  call.scale = 1;
  call.want_gradient = learns && !twice;
  const ChunkedRows found = loss_over_chunks(call, h, dh);
  const std::vector<int64_t> tails = learnt.tails(starts);
  ops::CrossEntropySums sums = tell_documents(learnt, found, starts, tails);
  const std::optional<DocumentSlopes> losses = learnt.losses();
  if (!losses) return sums;
  sums.loss = losses->sum;
  if (!learns) return sums;

  const at::Tensor scales =
      to_device(scales_of_rows(*losses, starts, tails, h.size(0), loss_scale), h.device());
  if (twice) {
    call.want_gradient = true;
    call.row_scales = scales;
    loss_over_chunks(call, h, dh);
  } else {
    dh.mul_(scales.unsqueeze(1));
  }
  return sums;
}

ops::CrossEntropySums loss_over_rows(const LossCall& call, const at::Tensor& h, at::Tensor dh,
                                     const std::vector<int64_t>& starts) {
  if (call.preference != nullptr) return loss_over_documents(call, h, dh, starts);
  return sum_chunks(loss_over_chunks(call, h, dh));
}

// Untrained rows give no loss and no gradient: they are left out, and their dh is zero.
ops::CrossEntropySums loss_over_trained_rows(LossCall call, const at::Tensor& h, at::Tensor dh,
                                             const std::vector<int64_t>& offsets) {
  const at::Tensor trained = call.targets.ne(kNotTrained).nonzero().view(-1);
  std::vector<int64_t> starts;
  if (call.preference != nullptr) starts = document_rows(trained, offsets);
  if (trained.numel() == h.size(0) && trained.numel() > 0) {
    return loss_over_rows(call, h, dh, starts);
  }
  call.targets = call.targets.index_select(0, trained);
  const at::Tensor rows = to_device(trained, h.device());
  if (call.draw.token_keys.defined()) {
    call.draw.token_keys = call.draw.token_keys.index_select(0, rows);
  }
  at::Tensor trained_h = h.index_select(0, rows), trained_dh;
  if (rows.numel() == 0) {
    // The weights' gradients are still written once (I2): one row of zeros changes nothing else.
    trained_h = at::zeros({1, h.size(1)}, h.options());
    call.targets = at::full({1}, kNotTrained, call.targets.options());
    if (call.draw.token_keys.defined()) {
      call.draw.token_keys = at::zeros({1}, call.draw.token_keys.options());
    }
  }
  if (call.want_gradient) trained_dh = at::empty_like(trained_h);
  const ops::CrossEntropySums sums = loss_over_rows(call, trained_h, trained_dh, starts);
  if (call.want_gradient) {
    dh.zero_();
    if (rows.numel() > 0) dh.index_copy_(0, rows, trained_dh);
  }
  return sums;
}

struct LossFunction : torch::autograd::Function<LossFunction> {
  static at::Tensor forward(AutogradContext* context, const LossCall& call, const at::Tensor& h,
                            const std::vector<int64_t>& offsets, ops::CrossEntropySums* sums) {
    at::Tensor dh;
    if (call.want_gradient) dh = at::empty_like(h);
    *sums = loss_over_trained_rows(call, h, dh, offsets);
    if (call.want_gradient) context->save_for_backward({dh});
    // Not on a GPU: the host would wait for what it has just brought from there.
    const at::Device device = h.is_cuda() ? at::Device(at::kCPU) : h.device();
    return at::full({}, sums->loss * call.scale, h.options().dtype(at::kFloat).device(device));
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
    return {at::Tensor(), context->get_saved_variables()[0], at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor chunked_cross_entropy(const at::Tensor& h, const Linear& output,
                                 const ForwardContext& context, double softcap) {
  const bool want_gradient = at::GradMode::is_enabled() && h.requires_grad();
  LossCall call{.output = {.linear = &output, .purpose = purpose_of(context)},
                .draw = DropoutDraw::from(context),
                .targets = context.batch->targets,
                .scale = context.head.loss_scale,
                .want_gradient = want_gradient,
                .options = {.softcap = static_cast<float>(softcap),
                            .smoothing = context.head.label_smoothing},
                .preference = context.head.preference};
  if (output.is_dora())
    call.output.dora_norms = dora_row_norms(output.weight(), *output.low_rank());
  ops::CrossEntropySums sums;
  at::Tensor loss = LossFunction::apply(call, h, context.batch->offsets, &sums);
  if (context.head.sums != nullptr) {
    context.head.sums->loss += sums.loss;
    context.head.sums->correct += sums.correct;
    context.head.sums->entropy += sums.entropy;
    context.head.sums->tokens += sums.tokens;
  }
  return loss;
}

}  // namespace strata::nn
