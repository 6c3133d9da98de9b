// Dropout on the CPU: a 32-bit integer hash an element. Never: checks.
#include <ATen/Parallel.h>

#include <cmath>
#include <vector>

#include "strata/ops/cpu_kernels.h"
#include "strata/ops/dropout_keys.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

// Channel c is kept when hash(low + c, high) >= threshold. The 64 bits of the row's key enter
// before and between the multiplications, so rows have unrelated masks.
STRATA_VECTORIZED void dropout_row(const float* x, float* y, int64_t n, uint32_t low, uint32_t high,
                                   uint32_t threshold, float factor) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t h = low + static_cast<uint32_t>(i) * 0x9E3779B9u;
    h = (h ^ (h >> 16)) * 0x7FEB352Du;
    h = (h ^ (h >> 15) ^ high) * 0x846CA68Bu;
    h ^= h >> 16;
    y[i] = h >= threshold ? x[i] * factor : 0.0f;
  }
}

// `y` may be `a`.
STRATA_VECTORIZED void add_rows(const float* a, const float* b, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

}  // namespace

DropoutRow::DropoutRow(double p, uint64_t key, int64_t token_key) {
  const double limit = std::ldexp(p, 32);
  const uint64_t bits = row_key(key, token_key);
  low_ = static_cast<uint32_t>(bits);
  high_ = static_cast<uint32_t>(bits >> 32);
  threshold_ = limit >= 4294967295.0 ? 4294967295u : static_cast<uint32_t>(limit);
  factor_ = p < 1 ? static_cast<float>(1.0 / (1.0 - p)) : 0.0f;
}

void DropoutRow::apply(const float* x, float* y, int64_t n, int64_t first) const {
  dropout_row(x, y, n, low_ + static_cast<uint32_t>(first) * 0x9E3779B9u, high_, threshold_,
              factor_);
}

void dropout(const DropoutArguments& a) {
  const int64_t n = a.channels;
  at::parallel_for(0, a.tokens, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(3 * n);
    for (int64_t t = begin; t < end; ++t) {
      void* to = at_index(a.type, a.y, t * n);
      float* y = begin_row(a.type, to, scratch.data() + n);
      float* dropped = a.add ? scratch.data() + 2 * n : y;
      DropoutRow(a.p, a.key, a.token_keys[t])
          .apply(read_row(a.type, at_index(a.type, a.x, t * n), n, scratch.data()), dropped, n);
      if (a.add) add_rows(read_row(a.type, to, n, y), dropped, y, n);
      finish_row(a.type, y, n, to);
    }
  });
}

}  // namespace strata::ops::cpu
