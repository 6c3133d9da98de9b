#include "strata/nn/logit_numbers.h"

#include <algorithm>
#include <functional>

#include <ATen/ATen.h>

namespace strata::nn {
namespace {

// Calls `use` with few rows of the logits after few, from which row on. Memory: what it makes of
// them is small, and no plan knows of it.
void for_few_rows(const at::Tensor& logits, const std::function<void(int64_t, at::Tensor)>& use) {
  constexpr int64_t kBytesAtOnce = 1 << 20, kBytesAtOnceOnGpu = 16 << 20;
  const int64_t bytes_a_row = logits.size(1) * static_cast<int64_t>(sizeof(float));
  const int64_t at_once =
      std::max<int64_t>(1, (logits.is_cuda() ? kBytesAtOnceOnGpu : kBytesAtOnce) / bytes_a_row);
  for (int64_t start = 0; start < logits.size(0); start += at_once) {
    use(start, logits.narrow(0, start, std::min(at_once, logits.size(0) - start)));
  }
}

}  // namespace

void take_logit_means(const at::Tensor& logits, double softcap, const at::Tensor& means) {
  if (softcap == 0) {
    means.copy_(logits.mean(1, /*keepdim=*/false, at::kFloat));
    return;
  }
  for_few_rows(logits, [&](int64_t start, const at::Tensor& rows) {
    const at::Tensor capped = (rows / softcap).tanh_();
    means.narrow(0, start, rows.size(0))
        .copy_(capped.mean(1, /*keepdim=*/false, at::kFloat).mul_(softcap));
  });
}

void take_log_squares(const at::Tensor& logits, double softcap, const at::Tensor& log_squares) {
  for_few_rows(logits, [&](int64_t start, const at::Tensor& rows) {
    at::Tensor x = rows.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    if (softcap != 0) x.div_(softcap).tanh_().mul_(softcap);
    x.sub_(x.amax(1, /*keepdim=*/true)).exp_();
    const at::Tensor sum = x.sum(1);
    log_squares.narrow(0, start, rows.size(0)).copy_(x.square_().sum(1).log_() - 2 * sum.log());
  });
}

}  // namespace strata::nn
