#include "strata/models/sinusoids.h"

#include <cmath>

#include <ATen/ATen.h>

namespace strata::models {

at::Tensor m2m_100_sinusoids(const at::Tensor& positions, int64_t width) {
  const int64_t half = width / 2;
  const double step = std::log(10000.0) / static_cast<double>(half - 1);
  const auto options = positions.options().dtype(at::kFloat);
  const at::Tensor rates = at::exp(at::arange(half, options) * -step);
  const at::Tensor angles = positions.to(at::kFloat).unsqueeze(1) * rates.unsqueeze(0);
  std::vector<at::Tensor> parts{at::sin(angles), at::cos(angles)};
  if (width % 2 != 0) parts.push_back(at::zeros({positions.size(0), 1}, options));
  return at::cat(parts, 1);
}

at::Tensor marian_sinusoids(const at::Tensor& positions, int64_t width) {
  // As the reference: in double precision, rounded at the end.
  const auto options = positions.options().dtype(at::kDouble);
  const int64_t sines = (width + 1) / 2;
  const at::Tensor exponents = at::arange(sines, options) * 2.0 / static_cast<double>(width);
  const at::Tensor lengths = at::pow(10000.0, exponents);
  const at::Tensor angles = positions.to(at::kDouble).unsqueeze(1) / lengths.unsqueeze(0);
  return at::cat({at::sin(angles), at::cos(angles.narrow(1, 0, width / 2))}, 1).to(at::kFloat);
}

}  // namespace strata::models
