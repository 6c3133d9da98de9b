// Rotary position embedding on the CPU. Never: checks.
#include <ATen/Parallel.h>

#include <vector>

#include "strata/ops/cpu_kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

// Turn one token of `heads` heads. `sign` is -1 for the inverse.
STRATA_VECTORIZED void turn_halves(float* x, int64_t heads, int64_t head_stride, const float* cos,
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
STRATA_VECTORIZED void turn_neighbours(float* x, int64_t heads, int64_t head_stride,
                                       const float* cos, const float* sin, float sign,
                                       int64_t half) {
  for (int64_t h = 0; h < heads; ++h) {
    float* __restrict head = x + h * head_stride;
    for (int64_t i = 0; i < half; ++i) {
      const float a = head[2 * i];
      const float b = head[2 * i + 1];
      const float s = sign * sin[i];
      head[2 * i] = a * cos[i] - b * s;
      head[2 * i + 1] = b * cos[i] + a * s;
    }
  }
}

}  // namespace

void rope(const RopeArguments& a) {
  const float sign = a.inverse ? -1.0f : 1.0f;
  const auto turn_token = a.pairs == RopePairs::kHalves ? turn_halves : turn_neighbours;
  at::parallel_for(0, a.tokens, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(a.type == Element::kFloat ? 0 : 2 * a.half);
    for (int64_t t = begin; t < end; ++t) {
      const float* c = a.cos + t * a.half;
      const float* s = a.sin + t * a.half;
      void* token = at_index(a.type, a.x.data, t * a.x.token_stride);
      if (a.type == Element::kFloat) {
        turn_token(static_cast<float*>(token), a.x.heads, a.x.head_stride, c, s, sign, a.half);
        continue;
      }
      for (int64_t h = 0; h < a.x.heads; ++h) {
        auto* head = static_cast<uint16_t*>(token) + h * a.x.head_stride;
        widen(head, scratch.data(), 2 * a.half);
        turn_token(scratch.data(), 1, 0, c, s, sign, a.half);
        narrow(scratch.data(), head, 2 * a.half);
      }
    }
  });
}

}  // namespace strata::ops::cpu
