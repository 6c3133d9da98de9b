#include "strata/adapters/vera.h"

#include <cmath>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

namespace strata::adapters {

nn::VeraProjection draw_projection(uint64_t key, int64_t rank, int64_t in_features,
                                   int64_t out_features) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(key);
  const auto draw = [&](int64_t rows, int64_t columns) {
    const double deviation = std::sqrt(2.0) / std::sqrt(static_cast<double>(columns));
    const double bound = std::sqrt(3.0) * deviation;
    return at::empty({rows, columns}, at::kFloat).uniform_(-bound, bound, generator);
  };
  nn::VeraProjection projection;
  projection.a = draw(rank, in_features);
  projection.b = draw(out_features, rank);
  return projection;
}

void round_projection(nn::VeraProjection& projection, at::ScalarType weight) {
  projection.a = projection.a.to(weight).to(at::kFloat);
  projection.b = projection.b.to(weight).to(at::kFloat);
}

}  // namespace strata::adapters
