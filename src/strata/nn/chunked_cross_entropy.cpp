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
#include "strata/libtorch/planned_device.h"
#include "strata/nn/dora.h"
#include "strata/nn/logit_numbers.h"
#include "strata/nn/preference.h"
#include "strata/nn/rescale.h"
#include "strata/nn/weight_product.h"
#include "strata/ops/cross_entropy.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kChunkBytes = 16 << 20;
// On a GPU a chunk is as long as makes its products run at full rate, and is never widened: the
// kernel reads and writes the type of the logits.
constexpr int64_t kChunkBytesOnGpu = 256 << 20;
// Where the weight trains every chunk but the first reads and writes its whole gradient in fp32,
// eight bytes an element for two operations a row: of fewer rows than these that takes more than a
// quarter of the product's time (at 790 TFLOP/s and 3 TB/s).
constexpr int64_t kTrainedRowsOnGpu = 4096;
constexpr int64_t kLeastTrainedBytesOnGpu = 512 << 20, kMostTrainedBytesOnGpu = 1 << 30;
// Fewer rows would read the weight and its gradient too often for one pass of products.
constexpr int64_t kMinRows = 64;
// Rows of a tile of cuBLAS's products: the rest of a last one would be computed for nothing.
constexpr int64_t kTileRowsOnGpu = 128;
// Rows of logits that do not begin at 16 bytes take cuBLAS to kernels of a fraction of the rate,
// and a word added to a vocabulary is enough for that.
constexpr int64_t kAlignedWordsOnGpu = 8, kRowWordsOnGpu = 64;

struct LossCall {
  const Linear* output;
  DropoutDraw draw;
  at::Tensor targets;  // int64 [T]
  float scale;
  bool want_gradient;
  Purpose purpose;
  at::Tensor dora_norms;  // of a DoRA branch: they do not depend on the chunk
  ops::CrossEntropyOptions options;
  Preference* preference = nullptr;  // its documents' losses are learnt in the place of the tokens'
  at::Tensor row_scales = {};        // fp32 [R]: what each row's gradient counts; undefined: 1
};

// One chunk's logits in the compute type, and what its backward pass needs of the adapter.
struct ChunkLogits {
  at::Tensor logits;
  at::Tensor hidden;    // A(x) of a branch, LoRA's or VeRA's
  DoraSaved dora;       // of a DoRA branch, instead
  at::Tensor unscaled;  // of factors on the logits: the logits before
};

ChunkLogits chunk_logits(const LossCall& call, const at::Tensor& h, const DropoutDraw& draw,
                         at::Tensor buffer) {
  const Linear& output = *call.output;
  ChunkLogits result{.logits = buffer, .hidden = {}, .dora = {}, .unscaled = {}};
  if (output.is_dora()) {
    buffer.zero_();
    result.dora = dora_forward_(buffer, h, output.weight(), *output.low_rank(),
                                {.draw = draw, .purpose = call.purpose, .norms = call.dora_norms});
  } else {
    forward_product_into(buffer, h, output.weight(), /*beta=*/0, call.purpose);
    if (output.token_rows()) output.token_rows()->replace_logits(h, buffer);
  }
  if (output.bias() != nullptr) buffer.add_(output.bias()->value());
  if (output.low_rank() != nullptr && !output.is_dora()) {
    result.hidden = low_rank_forward_(buffer, h, *output.low_rank(), draw);
  }
  if (output.vera() != nullptr) result.hidden = vera_forward_(buffer, h, *output.vera(), draw);
  if (output.rescale() != nullptr && !output.rescale()->of_input) {
    if (call.want_gradient) result.unscaled = buffer.clone();
    buffer.copy_(rescaled(buffer, *output.rescale()));
  }
  return result;
}

// `h`: what the layer read, `result` with the logits replaced by their gradient.
void chunk_backward(const LossCall& call, const at::Tensor& h, const ChunkLogits& result,
                    const DropoutDraw& draw, at::Tensor dh) {
  const Linear& output = *call.output;
  at::Tensor dlogits = result.logits;
  if (result.unscaled.defined()) {
    dlogits = rescale_backward(dlogits, result.unscaled, *output.rescale());
  }
  if (output.weight().requires_grad()) output.weight().accumulate_grad_product(dlogits, h);
  if (output.bias() != nullptr && output.bias()->requires_grad()) {
    output.bias()->accumulate_grad(dlogits.sum(at::IntArrayRef{0}, /*keepdim=*/false, at::kFloat));
  }
  if (output.is_dora()) {
    dora_backward(dlogits, h, result.dora, output.weight(), *output.low_rank(), draw, dh,
                  /*beta=*/0);
    return;
  }
  if (output.token_rows()) {
    dh.zero_();
    output.token_rows()->replace_logits_backward(h, dlogits, dh);
  }
  multiply_by_weight_back_into(dh, dlogits, output.weight(), output.token_rows() ? 1 : 0);
  if (output.low_rank() != nullptr) {
    low_rank_backward(dlogits, {h, result.hidden}, *output.low_rank(), draw, dh);
  }
  if (output.vera() != nullptr) vera_backward(dlogits, result.hidden, *output.vera(), draw, dh);
}

// Where the loss works on its logits.
struct LossBuffers {
  int64_t chunk;       // rows at once
  at::Tensor logits;   // [chunk, V], of the type of h
  at::Tensor widened;  // the same in fp32; the same tensor where nothing is to be widened
  at::Tensor rows;     // what each row of all chunks gives
};

int64_t loss_rows_on_gpu(const at::Tensor& h, const Linear& output, bool want_gradient) {
  const int64_t bytes_a_row = output.out_features() * static_cast<int64_t>(h.element_size());
  const int64_t trained_bytes =
      std::clamp(kTrainedRowsOnGpu * bytes_a_row, kLeastTrainedBytesOnGpu, kMostTrainedBytesOnGpu);
  const bool trains = want_gradient && output.weight().requires_grad();
  int64_t rows = std::max(kMinRows, (trains ? trained_bytes : kChunkBytesOnGpu) / bytes_a_row);
  if (rows > kTileRowsOnGpu) rows -= rows % kTileRowsOnGpu;
  return std::min(h.size(0), rows);
}

at::Tensor empty_logits(int64_t rows, int64_t vocab, const at::TensorOptions& options,
                        bool on_gpu) {
  if (!on_gpu || vocab % kAlignedWordsOnGpu == 0) return at::empty({rows, vocab}, options);
  const int64_t stride = (vocab + kRowWordsOnGpu - 1) / kRowWordsOnGpu * kRowWordsOnGpu;
  return at::empty({rows, stride}, options).narrow(1, 0, vocab);
}

LossBuffers make_buffers(const at::Tensor& h, const Linear& output, bool want_gradient) {
  const bool on_gpu = is_for_cuda(h);
  const int64_t vocab = output.out_features();
  LossBuffers buffers;
  buffers.chunk =
      on_gpu ? loss_rows_on_gpu(h, output, want_gradient) : loss_rows_at_once(h.size(0), vocab);
  buffers.logits = empty_logits(buffers.chunk, vocab, h.options(), on_gpu);
  buffers.widened = h.scalar_type() == at::kFloat || on_gpu
                        ? buffers.logits
                        : at::empty({buffers.chunk, vocab}, h.options().dtype(at::kFloat));
  buffers.rows =
      at::empty({h.size(0), ops::cross_entropy_row_bytes()}, h.options().dtype(at::kByte));
  return buffers;
}

// What each row gave, in the host's memory, and how many of them were taken at once.
struct ChunkedRows {
  at::Tensor rows;
  int64_t chunk;
  // fp32 [R] each; undefined: nobody asked.
  at::Tensor mean_logits = {}, log_squares = {};
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

// Of what was asked of each row; 0 where it was not.
double sum_of(const at::Tensor& of_rows, int64_t first, int64_t last) {
  if (!of_rows.defined() || first == last) return 0;
  return of_rows.narrow(0, first, last - first).sum(at::kDouble).item<double>();
}

// Loss over all rows of h [R, hidden]; fills dh [R, hidden] where a gradient is wanted. The host
// waits for a device once, behind the last chunk.
ChunkedRows loss_over_chunks(const LossCall& call, const at::Tensor& h, at::Tensor dh) {
  const int64_t rows = h.size(0), vocab = call.output->out_features();
  const MemoryScope of_logits(MemoryKind::kLogits);
  const LossBuffers buffers = make_buffers(h, *call.output, call.want_gradient);
  at::Tensor targets = call.targets;
  if (h.is_cuda()) {
    ops::check_targets(targets, vocab);
    targets = to_device(targets, h.device());
  }
  at::Tensor mean_logits, log_squares;
  const bool is_first_pass = !call.row_scales.defined();
  if (is_first_pass && call.preference != nullptr) {
    const auto number_a_row = [&](bool is_wanted) {
      return is_wanted ? at::empty({rows}, h.options().dtype(at::kFloat)) : at::Tensor();
    };
    mean_logits = number_a_row(call.preference->wants_mean_logits());
    log_squares = number_a_row(call.preference->wants_log_squares());
  }
  Rescale* rescale = call.output->rescale();
  Rescale* of_input = rescale != nullptr && rescale->of_input ? rescale : nullptr;
  for (int64_t start = 0; start < rows; start += buffers.chunk) {
    const int64_t length = std::min(buffers.chunk, rows - start);
    const DropoutDraw draw = call.draw.narrow(start, length);
    const at::Tensor rows_h = h.narrow(0, start, length);
    const at::Tensor x = of_input != nullptr ? rescaled(rows_h, *of_input) : rows_h;
    const ChunkLogits result = chunk_logits(call, x, draw, buffers.logits.narrow(0, 0, length));
    const bool is_widened = !buffers.widened.is_same(buffers.logits);
    at::Tensor logits = buffers.widened.narrow(0, 0, length);
    if (is_widened) logits.copy_(result.logits);
    if (mean_logits.defined()) {
      take_logit_means(logits, call.options.softcap, mean_logits.narrow(0, start, length));
    }
    if (log_squares.defined()) {
      take_log_squares(logits, call.options.softcap, log_squares.narrow(0, start, length));
    }
    ops::cross_entropy_rows_(logits, targets.narrow(0, start, length), call.scale,
                             call.want_gradient, buffers.rows.narrow(0, start, length),
                             call.options);
    if (!call.want_gradient) continue;
    if (call.row_scales.defined()) {
      logits.mul_(call.row_scales.narrow(0, start, length).unsqueeze(1));
    }
    if (is_widened) result.logits.copy_(logits);
    at::Tensor rows_dh = dh.narrow(0, start, length);
    chunk_backward(call, x, result, draw, rows_dh);
    if (of_input != nullptr) rows_dh.copy_(rescale_backward(rows_dh, rows_h, *of_input));
  }
  const auto on_host = [](const at::Tensor& found) {
    return found.defined() && found.is_cuda() ? found.cpu() : found;
  };
  return {on_host(buffers.rows), buffers.chunk, on_host(mean_logits), on_host(log_squares)};
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

// The documents' losses in the place of the tokens': what a token's gradient counts is known when
// the log-probabilities of whole documents are. A frozen layer's is scaled then; one that trains
// has taken it into its own by that time, so that it makes its logits twice.
ops::CrossEntropySums loss_over_documents(LossCall call, const at::Tensor& h, at::Tensor dh,
                                          const std::vector<int64_t>& starts) {
  Preference& learnt = *call.preference;
  const float loss_scale = call.scale;
  const bool learns = call.want_gradient;
  const bool twice = learns && trains(*call.output);
  call.scale = 1;
  call.want_gradient = learns && !twice;
  const ChunkedRows found = loss_over_chunks(call, h, dh);

  ops::CrossEntropySums sums;
  learnt.documents.clear();
  const auto sums_of = [&](int64_t first, int64_t last) {
    return ops::sum_cross_entropy_rows(found.rows.narrow(0, first, last - first));
  };
  const std::vector<int64_t> tails = learnt.tails(starts);
  for (size_t d = 0; d + 1 < starts.size(); ++d) {
    const ops::CrossEntropySums document = sums_of(starts[d], starts[d + 1]);
    const bool has_tail = tails[d] < starts[d + 1];
    learnt.documents.push_back(
        {-document.loss, has_tail ? -sums_of(tails[d], starts[d + 1]).loss : 0.0, document.correct,
         document.entropy, document.tokens, sum_of(found.mean_logits, starts[d], starts[d + 1]),
         sum_of(found.log_squares, starts[d], starts[d + 1])});
    add(sums, document);
  }
  const std::optional<DocumentSlopes> losses = learnt.losses();
  if (!losses) return sums;
  sums.loss = losses->sum;
  if (!learns) return sums;

  at::Tensor scales = at::zeros({h.size(0)}, at::kFloat);
  for (size_t d = 0; d + 1 < starts.size(); ++d) {
    // The gradient is of -log p.
    const auto fill = [&](int64_t first, int64_t last, double slope) {
      scales.narrow(0, first, last - first)
          .fill_(in_fp32(-slope * static_cast<double>(loss_scale)));
    };
    fill(starts[d], tails[d], losses->slopes[d]);
    fill(tails[d], starts[d + 1], losses->tail_slopes[d]);
  }
  scales = to_device(scales, h.device());
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

int64_t loss_rows_at_once(int64_t tokens, int64_t vocabulary) {
  const int64_t bytes_a_row = vocabulary * static_cast<int64_t>(sizeof(float));
  return std::min(tokens, std::max(kMinRows, kChunkBytes / bytes_a_row));
}

at::Tensor chunked_cross_entropy(const at::Tensor& h, const Linear& output,
                                 const ForwardContext& context, double softcap) {
  const bool want_gradient = at::GradMode::is_enabled() && h.requires_grad();
  LossCall call{&output,
                DropoutDraw::from(context),
                context.batch->targets,
                context.head.loss_scale,
                want_gradient,
                purpose_of(context),
                at::Tensor(),
                {.softcap = static_cast<float>(softcap), .smoothing = context.head.label_smoothing},
                context.head.preference};
  if (output.is_dora()) call.dora_norms = dora_row_norms(output.weight(), *output.low_rank());
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
