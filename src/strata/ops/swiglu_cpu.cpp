// SwiGLU and GeGLU on the CPU. Never: checks.
#include <ATen/Parallel.h>

#include <vector>

#include "strata/ops/cpu_kernels.h"
#include "strata/ops/gelu_tanh.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

STRATA_VECTORIZED void swiglu_row(const float* gate, const float* up, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    y[i] = gate[i] * up[i] / (1.0f + exp_vectorizable(-gate[i]));
  }
}

// The outputs may be the inputs: each element is read before it is written.
STRATA_VECTORIZED void swiglu_backward_row(const float* dy, const float* gate, const float* up,
                                           float* dgate, float* dup, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = gate[i];
    const float u = up[i];
    const float d = dy[i];
    const float sigmoid = 1.0f / (1.0f + exp_vectorizable(-g));
    dgate[i] = d * u * sigmoid * (1.0f + g * (1.0f - sigmoid));
    dup[i] = d * g * sigmoid;
  }
}

// The same for weight * dy; returns the gradient of the weight.
STRATA_VECTORIZED float weighted_swiglu_backward_row(const float* dy, float weight,
                                                     const float* gate, const float* up,
                                                     float* dgate, float* dup, int64_t n) {
  float dweight = 0;
#pragma omp simd reduction(+ : dweight)
  for (int64_t i = 0; i < n; ++i) {
    const float g = gate[i];
    const float u = up[i];
    const float d = weight * dy[i];
    const float sigmoid = 1.0f / (1.0f + exp_vectorizable(-g));
    dweight += dy[i] * u * g * sigmoid;
    dgate[i] = d * u * sigmoid * (1.0f + g * (1.0f - sigmoid));
    dup[i] = d * g * sigmoid;
  }
  return dweight;
}

STRATA_VECTORIZED void geglu_row(const float* gate, const float* up, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    y[i] = gate[i] * up[i] / (1.0f + exp_vectorizable(-GeluTanh(gate[i]).twice_u));
  }
}

STRATA_VECTORIZED void geglu_backward_row(const float* dy, const float* gate, const float* up,
                                          float* dgate, float* dup, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = gate[i];
    const float u = up[i];
    const float d = dy[i];
    const GeluTanh gelu(g);
    const float sigmoid = 1.0f / (1.0f + exp_vectorizable(-gelu.twice_u));
    dgate[i] = d * u * sigmoid * (1.0f + g * (1.0f - sigmoid) * gelu.slope);
    dup[i] = d * g * sigmoid;
  }
}

void* row_of(Element type, const MatrixView& view, int64_t row) {
  return at_index(type, view.data, row * view.stride);
}

constexpr int64_t kGrain = 8;  // rows worth a thread

// Calls visit(row, dy, gate, up, dgate, dup) for every row, widened, and rounds what it writes.
template <typename Visit>
void for_rows_back(Element type, const GatedGradients& views, int64_t rows, int64_t n,
                   const Visit& visit) {
  at::parallel_for(0, rows, kGrain, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(3 * n);
    float* s = scratch.data();
    for (int64_t r = begin; r < end; ++r) {
      void* dgate_row = row_of(type, views.dgate, r);
      void* dup_row = row_of(type, views.dup, r);
      const float* dy_row = read_row(type, row_of(type, views.dy, r), n, s);
      const float* g = read_row(type, row_of(type, views.gate, r), n, s + n);
      const float* u = read_row(type, row_of(type, views.up, r), n, s + 2 * n);
      // In bf16 the results overwrite the converted inputs.
      float* dg = begin_row(type, dgate_row, s + n);
      float* du = begin_row(type, dup_row, s + 2 * n);
      visit(r, dy_row, g, u, dg, du);
      finish_row(type, dg, n, dgate_row);
      finish_row(type, du, n, dup_row);
    }
  });
}

}  // namespace

void gated(GateKind kind, Element type, MatrixView gate, MatrixView up, MatrixView y, int64_t rows,
           int64_t columns) {
  const int64_t n = columns;
  const auto gate_row = kind == GateKind::kSilu ? swiglu_row : geglu_row;
  at::parallel_for(0, rows, kGrain, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(3 * n);
    float* s = scratch.data();
    for (int64_t r = begin; r < end; ++r) {
      float* out = begin_row(type, row_of(type, y, r), s + 2 * n);
      gate_row(read_row(type, row_of(type, gate, r), n, s),
               read_row(type, row_of(type, up, r), n, s + n), out, n);
      finish_row(type, out, n, row_of(type, y, r));
    }
  });
}

void gated_backward(GateKind kind, Element type, const GatedGradients& views, int64_t rows,
                    int64_t columns) {
  const auto gate_row = kind == GateKind::kSilu ? swiglu_backward_row : geglu_backward_row;
  for_rows_back(type, views, rows, columns,
                [&](int64_t, const float* dy, const float* gate, const float* up, float* dgate,
                    float* dup) { gate_row(dy, gate, up, dgate, dup, columns); });
}

void weighted_swiglu_backward(Element type, const GatedGradients& views, const RowWeights& weights,
                              int64_t rows, int64_t columns) {
  for_rows_back(type, views, rows, columns,
                [&](int64_t row, const float* dy, const float* gate, const float* up, float* dgate,
                    float* dup) {
                  weights.gradient[row] = weighted_swiglu_backward_row(
                      dy, weights.weight[row], gate, up, dgate, dup, columns);
                });
}

}  // namespace strata::ops::cpu
