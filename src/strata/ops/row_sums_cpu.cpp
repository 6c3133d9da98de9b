// Sums of rows on the CPU. Never: checks.
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>

#include "strata/ops/cpu_kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {
namespace {

constexpr int64_t kBlock = 1024;       // columns at a time, which stay in the first cache
constexpr int64_t kGrain = 32 * 1024;  // elements worth a thread

STRATA_VECTORIZED void scale_row(const float* x, float weight, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] = weight * x[i];
}

STRATA_VECTORIZED void add_scaled_row(const float* x, float weight, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += weight * x[i];
}

// Columns first .. first + n of one token.
void sum_block(const RowSumsArguments& a, int64_t token, int64_t first, int64_t n) {
  std::array<float, kBlock> scratch, widened;
  void* const to = at_index(a.type, a.y, token * a.columns + first);
  float* const sum = begin_row(a.type, to, scratch.data());
  if (a.per_token == 0) std::fill_n(sum, n, 0.0f);
  for (int64_t j = 0; j < a.per_token; ++j) {
    const int64_t row = a.place[j * a.tokens + token];
    const float* x =
        read_row(a.type, at_index(a.type, a.x, row * a.columns + first), n, widened.data());
    const float weight = a.weights == nullptr ? 1.0f : a.weights[token * a.per_token + j];
    j == 0 ? scale_row(x, weight, sum, n) : add_scaled_row(x, weight, sum, n);
  }
  finish_row(a.type, sum, n, to);
}

}  // namespace

void row_sums(const RowSumsArguments& a) {
  const int64_t of_token = std::max<int64_t>(1, a.per_token * a.columns);
  const int64_t grain = std::max<int64_t>(1, kGrain / of_token);
  at::parallel_for(0, a.tokens, grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t first = 0; first < a.columns; first += kBlock) {
        sum_block(a, t, first, std::min(kBlock, a.columns - first));
      }
    }
  });
}

}  // namespace strata::ops::cpu
