// Uniform noise on the CPU: the hash of dropout_cpu.cpp an element. Never: checks.
#include <ATen/Parallel.h>

#include <vector>

#include "strata/ops/cpu_kernels.h"
#include "strata/ops/dropout_keys.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

// The upper 24 bits of the hash as a number in [-1, 1), times the magnitude.
STRATA_VECTORIZED void noise_row(const float* x, float* y, int64_t n, uint32_t low, uint32_t high,
                                 float magnitude) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t h = low + static_cast<uint32_t>(i) * 0x9E3779B9u;
    h = (h ^ (h >> 16)) * 0x7FEB352Du;
    h = (h ^ (h >> 15) ^ high) * 0x846CA68Bu;
    h ^= h >> 16;
    const auto step = static_cast<int32_t>(h >> 8) - (1 << 23);
    y[i] = x[i] + magnitude * (static_cast<float>(step) * (1.0f / (1 << 23)));
  }
}

}  // namespace

void uniform_noise(const NoiseArguments& a) {
  const int64_t n = a.channels;
  at::parallel_for(0, a.tokens, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(2 * n);
    for (int64_t t = begin; t < end; ++t) {
      const uint64_t bits = row_key(a.key, a.token_keys[t]);
      void* row = at_index(a.type, a.x, t * n);
      float* y = begin_row(a.type, row, scratch.data() + n);
      noise_row(read_row(a.type, row, n, scratch.data()), y, n, static_cast<uint32_t>(bits),
                static_cast<uint32_t>(bits >> 32), a.magnitude);
      finish_row(a.type, y, n, row);
    }
  });
}

}  // namespace strata::ops::cpu
