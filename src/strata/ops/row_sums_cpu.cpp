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

STRATA_VECTORIZED void add_scaled(const float* x, float weight, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += weight * x[i];
}

// Of bf16, widened on the way: into memory first takes twice as long.
STRATA_VECTORIZED void add_scaled_bf16(const uint16_t* x, float weight, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += weight * from_bf16(x[i]);
}

// Rows lie anywhere: nobody else foresees the next one.
void prefetch(const void* row, int64_t size_bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t i = 0; i < size_bytes; i += kLine) {
    __builtin_prefetch(static_cast<const char*>(row) + i);
  }
}

// Columns first .. first + n of one token.
void sum_block(const RowSumsArguments& a, int64_t token, int64_t first, int64_t n) {
  std::array<float, kBlock> scratch;
  void* const to = at_index(a.type, a.y, token * a.columns + first);
  float* const sum = begin_row(a.type, to, scratch.data());
  std::fill_n(sum, n, 0.0f);
  const auto row_of = [&](int64_t j) {
    return at_index(a.type, a.x, a.place[j * a.tokens + token] * a.columns + first);
  };
  for (int64_t j = 0; j < a.per_token; ++j) {
    const void* const x = row_of(j);
    if (j + 1 < a.per_token) prefetch(row_of(j + 1), n * size_bytes(a.type));
    const float weight = a.weights == nullptr ? 1.0f : a.weights[token * a.per_token + j];
    a.type == Element::kFloat ? add_scaled(static_cast<const float*>(x), weight, sum, n)
                              : add_scaled_bf16(static_cast<const uint16_t*>(x), weight, sum, n);
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
