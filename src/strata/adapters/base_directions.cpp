#include "strata/adapters/base_directions.h"

#include <charconv>

#include <ATen/ATen.h>

#include "strata/ops/quant/quantized.h"

namespace strata::adapters {
namespace {

constexpr std::string_view kIterations = "pissa_niter_";

// torch.svd_lowrank: U, S, V of the randomised range finder of Halko et al. 2009.
std::tuple<at::Tensor, at::Tensor, at::Tensor> low_rank_svd(const at::Tensor& w, int64_t iterations,
                                                            const at::Tensor& random) {
  const bool is_wide = w.size(0) < w.size(1);
  const at::Tensor m = is_wide ? w.t() : w;
  at::Tensor q = std::get<0>(at::linalg_qr(at::matmul(m, random)));
  for (int64_t i = 0; i < iterations; ++i) {
    q = std::get<0>(at::linalg_qr(at::matmul(m.t(), q)));
    q = std::get<0>(at::linalg_qr(at::matmul(m, q)));
  }
  const auto [u, s, vh] = at::linalg_svd(at::matmul(q.t(), m), /*full_matrices=*/false);
  const at::Tensor left = q.matmul(u), right = vh.t();
  return is_wide ? std::tuple{right, s, left} : std::tuple{left, s, right};
}

// Quantised again and again, each time what the branch leaves of the weight.
BaseDirections from_quantization(const at::Tensor& w, int64_t rank, const LoraOptions& options) {
  ops::quant::Format format;
  format.kind = options.loftq_bits == 8 ? ops::quant::Kind::kInt8 : ops::quant::Kind::kNf4;
  BaseDirections found;
  at::Tensor rest = w;
  for (int64_t i = 0; i < options.loftq_iter; ++i) {
    found.base =
        ops::quant::dequantize(ops::quant::quantize(rest.contiguous(), format), at::kFloat);
    const BaseDirections fitted = best_approximation(w - found.base, rank);
    found.a = fitted.a;
    found.b = fitted.b;
    rest = w - at::mm(found.b, found.a);
  }
  return found;
}

}  // namespace

int64_t num_svd_iterations(const std::string& name) {
  if (!name.starts_with(kIterations)) return -1;
  int64_t number = -1;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kIterations.size(), end, number);
  return error == std::errc() && stop == end ? number : -1;
}

BaseDirections best_approximation(const at::Tensor& rest, int64_t rank) {
  const auto [left, sizes, right] = at::linalg_svd(rest, /*full_matrices=*/false);
  const at::Tensor roots = at::sqrt(sizes.narrow(0, 0, rank));
  return {roots.unsqueeze(1) * right.narrow(0, 0, rank), left.narrow(1, 0, rank) * roots,
          at::Tensor()};
}

BaseDirections base_directions(const at::Tensor& w, int64_t rank, double scaling,
                               const LoraOptions& options, const at::Tensor& random) {
  const std::string& init = options.init;
  if (init == "loftq") return from_quantization(w, rank, options);
  const auto without = [&](const at::Tensor& a, const at::Tensor& b) {
    return BaseDirections{a, b, w - at::matmul(b * scaling, a)};
  };
  if (init == "olora") {
    const auto [q, r] = at::linalg_qr(w);
    return without(r.narrow(0, 0, rank).contiguous(), q.narrow(1, 0, rank).contiguous());
  }
  at::Tensor left, sizes, right;
  if (random.defined()) {
    std::tie(left, sizes, right) = low_rank_svd(w, num_svd_iterations(init), random);
    right = right.t();
  } else {
    std::tie(left, sizes, right) = at::linalg_svd(w, /*full_matrices=*/false);
  }
  const at::Tensor roots = at::diag(at::sqrt(sizes.narrow(0, 0, rank) / scaling));
  return without(at::matmul(roots, right.narrow(0, 0, rank)),
                 at::matmul(left.narrow(1, 0, rank), roots));
}

}  // namespace strata::adapters
