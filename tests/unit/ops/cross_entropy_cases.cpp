#include "op_cases.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "op_arguments.h"
#include "strata/ops/cross_entropy.h"

namespace strata::ops {
namespace {

template <bool kCapped, bool kSmoothed>
OpCase cross_entropy_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const CrossEntropyOptions options{kCapped ? 8.0f : 0.0f, kSmoothed ? 0.25f : 0.0f};
  const Maker make{type, device};
  const at::Tensor logits = make.random({size.rows, size.columns}, 4.0);
  const at::Tensor targets = at::randint(size.columns, {size.rows}, at::kLong);
  if (size.rows > 2) targets[1] = -100;
  const at::Tensor logits64 = leaf(logits), used = targets != -100;
  const at::Tensor seen = kCapped ? 8 * at::tanh(logits64 / 8) : logits64;
  const at::Tensor log_p = at::log_softmax(seen, -1);
  at::Tensor picked = log_p.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  if (kSmoothed) picked = 0.75 * picked + 0.25 * log_p.mean(-1);
  const at::Tensor loss = -(picked * used).sum();
  torch::autograd::backward({loss * 0.125});
  const at::Tensor entropy = -((log_p.exp() * log_p).sum(-1) * used).sum();
  const at::Tensor correct = ((wide(logits).argmax(-1) == targets) & used).sum();
  const at::Tensor own = logits.clone();
  const at::Tensor untouched = logits.clone();
  const CrossEntropySums plain =
      cross_entropy_(untouched, targets, 0.125f, /*want_gradient=*/false, options);
  if (kCapped) untouched.copy_(logits);  // of capped ones nothing is promised
  const CrossEntropySums sums =
      cross_entropy_(own, targets, 0.125f, /*want_gradient=*/true, options);
  const auto scalar = [](double value) { return at::full({}, value, at::kDouble); };
  return {.comparisons = {{"loss", scalar(sums.loss), loss},
                          {"loss without gradient", scalar(plain.loss), loss},
                          {"entropy", scalar(sums.entropy), entropy},
                          {"correct", scalar(sums.correct), correct.to(at::kDouble)},
                          {"tokens", scalar(static_cast<double>(sums.tokens)),
                           used.sum().to(at::kDouble)},
                          {"logits left alone", untouched, wide(logits)},
                          {"dlogits", own, logits64.grad()}},
          .slopes = {{"logits", logits, own,
                      [=](const at::Tensor& v) {
                        return 0.125 *
                               cross_entropy_(v.clone(), targets, 1.0f, false, options).loss;
                      }}},
          .run = [=] { cross_entropy_(own, targets, 0.125f, /*want_gradient=*/true, options); },
          .bytes = 2 * bytes_of({logits})};
}

}  // namespace

std::vector<OpRow> cross_entropy_ops() {
  const std::vector<OpSize> logits = {{1, 2}, {9, 37}, {33, 8191}, {4, 20000}};
  // Of two logits one may be so sure that its loss is rounding.
  const std::vector<OpSize> unsure_logits = {{2, 5}, {9, 37}, {33, 8191}, {4, 20000}};
  const OpSize timed{512, 8192};
  return {{"cross_entropy", kFp32, logits, timed, cross_entropy_case<false, false>,
           /*narrow_on_gpu=*/true},
          {"capped_cross_entropy", kFp32, unsure_logits, timed, cross_entropy_case<true, false>,
           /*narrow_on_gpu=*/true},
          {"smoothed_cross_entropy", kFp32, unsure_logits, timed, cross_entropy_case<false, true>,
           /*narrow_on_gpu=*/true},
          {"capped_smoothed_cross_entropy", kFp32, unsure_logits, timed,
           cross_entropy_case<true, true>, /*narrow_on_gpu=*/true}};
}

}  // namespace strata::ops
