// The clamped SwiGLU on the CPU. Never: checks.
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>

#include "strata/ops/cpu_kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {
namespace {

constexpr int64_t kBlock = 1024;  // pairs at a time
constexpr int64_t kGrain = 8;     // blocks worth a thread

STRATA_VECTORIZED void gate_block(const float* gate_up, float* y, int64_t n, float alpha,
                                  float limit) {
  for (int64_t i = 0; i < n; ++i) {
    const float gate = gate_up[2 * i], up = gate_up[2 * i + 1];
    // Written so that a NaN stays one.
    const float g = gate > limit ? limit : gate;
    const float u = up > limit ? limit : up < -limit ? -limit : up;
    y[i] = (u + 1.0f) * g / (1.0f + exp_vectorizable(-alpha * g));
  }
}

STRATA_VECTORIZED void gate_backward_block(float* gate_up, const float* dy, int64_t n, float alpha,
                                           float limit) {
  for (int64_t i = 0; i < n; ++i) {
    const float gate = gate_up[2 * i], up = gate_up[2 * i + 1], d = dy[i];
    const float g = gate > limit ? limit : gate;
    const float u = up > limit ? limit : up < -limit ? -limit : up;
    const float sigmoid = 1.0f / (1.0f + exp_vectorizable(-alpha * g));
    const float dg = d * (u + 1.0f) * sigmoid * (1.0f + alpha * g * (1.0f - sigmoid));
    const float du = d * g * sigmoid;
    gate_up[2 * i] = gate > limit ? 0.0f : dg;
    gate_up[2 * i + 1] = up > limit || up < -limit ? 0.0f : du;
  }
}

// Calls visit(first pair, count) for all blocks.
template <typename Visit>
void for_blocks(int64_t pairs, const Visit& visit) {
  at::parallel_for(0, (pairs + kBlock - 1) / kBlock, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      visit(b * kBlock, std::min(kBlock, pairs - b * kBlock));
    }
  });
}

}  // namespace

void clamped_swiglu(Element type, const void* gate_up, void* y, int64_t pairs,
                    const ClampedGate& gate) {
  for_blocks(pairs, [&](int64_t first, int64_t n) {
    std::array<float, 3 * kBlock> scratch;
    void* const to = at_index(type, y, first);
    float* out = begin_row(type, to, scratch.data() + 2 * kBlock);
    gate_block(read_row(type, at_index(type, gate_up, 2 * first), 2 * n, scratch.data()), out, n,
               gate.alpha, gate.limit);
    finish_row(type, out, n, to);
  });
}

void clamped_swiglu_backward(Element type, void* gate_up, const void* dy, int64_t pairs,
                             const ClampedGate& gate) {
  for_blocks(pairs, [&](int64_t first, int64_t n) {
    std::array<float, 3 * kBlock> scratch;
    void* const both = at_index(type, gate_up, 2 * first);
    float* out = begin_row(type, both, scratch.data());
    if (type != Element::kFloat) copy_row(type, both, 2 * n, out);
    gate_backward_block(out,
                        read_row(type, at_index(type, dy, first), n, scratch.data() + 2 * kBlock),
                        n, gate.alpha, gate.limit);
    finish_row(type, out, 2 * n, both);
  });
}

}  // namespace strata::ops::cpu
