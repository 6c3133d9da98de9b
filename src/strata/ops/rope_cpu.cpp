// Rotary position embedding on the CPU. Never: checks.
#include <ATen/Parallel.h>

#include <vector>

#include "strata/ops/cpu_kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

// Turns one token of `heads` heads. `sign` is -1 for the inverse.
STRATA_VECTORIZED void turn_token(float* x, int64_t heads, int64_t head_stride, const float* cos,
                                  const float* sin, float sign, int64_t half) {
  for (int64_t h = 0; h < heads; ++h) {
    float* __restrict first = x + h * head_stride;
    float* __restrict second = first + half;
    for (int64_t i = 0; i < half; ++i) {
      const float a = first[i];
      const float b = second[i];
      const float s = sign * sin[i];
      first[i] = a * cos[i] - b * s;
      second[i] = b * cos[i] + a * s;
    }
  }
}

}  // namespace

void rope(Element type, HeadsView x, const float* cos, const float* sin, int64_t tokens,
          int64_t half, bool inverse) {
  const float sign = inverse ? -1.0f : 1.0f;
  at::parallel_for(0, tokens, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(type == Element::kFloat ? 0 : 2 * half);
    for (int64_t t = begin; t < end; ++t) {
      const float* c = cos + t * half;
      const float* s = sin + t * half;
      void* token = at_index(type, x.data, t * x.token_stride);
      if (type == Element::kFloat) {
        turn_token(static_cast<float*>(token), x.heads, x.head_stride, c, s, sign, half);
        continue;
      }
      for (int64_t h = 0; h < x.heads; ++h) {
        auto* head = static_cast<uint16_t*>(token) + h * x.head_stride;
        widen(head, scratch.data(), 2 * half);
        turn_token(scratch.data(), 1, 0, c, s, sign, half);
        narrow(scratch.data(), head, 2 * half);
      }
    }
  });
}

}  // namespace strata::ops::cpu
