// Sum of squares on the CPU. Never: checks.
#include <ATen/Parallel.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "strata/ops/cpu_kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

constexpr int64_t kBlock = 65536;

STRATA_VECTORIZED double square_sum_block(const float* x, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

}  // namespace

double square_sum(Element type, const void* flat, int64_t n) {
  const int64_t blocks = (n + kBlock - 1) / kBlock;
  std::vector<double> sums(blocks);
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(type == Element::kFloat ? 0 : kBlock);
    for (int64_t b = begin; b < end; ++b) {
      const int64_t length = std::min(kBlock, n - b * kBlock);
      const float* x = read_row(type, at_index(type, flat, b * kBlock), length, scratch.data());
      sums[b] = square_sum_block(x, length);
    }
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace strata::ops::cpu
