// SwiGLU and GeGLU on NVIDIA GPUs. Never: checks.
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"
#include "strata/ops/gelu_tanh.h"

namespace strata::ops::cuda {
namespace {

constexpr int kThreads = 256;

// Where a thread's pack lies: `of_row` blocks do one row, each kThreads packs.
struct Place {
  int64_t row, column;
};
template <int N>
__device__ inline Place place(unsigned of_row) {
  return {blockIdx.x / of_row, (int64_t{blockIdx.x % of_row} * kThreads + threadIdx.x) * N};
}

// What stands in the sigmoid, and its derivative by the gate.
template <GateKind kKind>
struct Sigmoid {
  float argument, slope;
  __device__ inline explicit Sigmoid(float gate) {
    if constexpr (kKind == GateKind::kSilu) {
      argument = gate;
      slope = 1.0f;
    } else {
      const GeluTanh gelu(gate);
      argument = gelu.twice_u;
      slope = gelu.slope;
    }
  }
};

template <GateKind kKind, typename T, int N>
__global__ void __launch_bounds__(kThreads)
    gated_packs(const T* __restrict__ gate, int64_t gate_stride, const T* __restrict__ up,
                int64_t up_stride, T* __restrict__ y, int64_t y_stride, int64_t columns,
                unsigned of_row) {
  const Place at = place<N>(of_row);
  if (at.column >= columns) return;
  const Pack<T, N> g = load<T, N>(gate + at.row * gate_stride + at.column);
  Pack<T, N> u = load<T, N>(up + at.row * up_stride + at.column);
  for (int k = 0; k < N; ++k) {
    const float gk = to_float(g.v[k]);
    const float inverse = 1.0f + exp_to<T>(-Sigmoid<kKind>(gk).argument);
    u.v[k] = from_float<T>(divide_to<T>(gk * to_float(u.v[k]), inverse));
  }
  store<T, N>(y + at.row * y_stride + at.column, u);
}

// Not __restrict__: dgate and dup may be gate and up. Each pack is read before it is written.
template <GateKind kKind, typename T, int N>
__global__ void __launch_bounds__(kThreads)
    gated_packs_backward(const T* dy, int64_t dy_stride, const T* gate, int64_t gate_stride,
                         const T* up, int64_t up_stride, T* dgate, int64_t dgate_stride, T* dup,
                         int64_t dup_stride, int64_t columns, unsigned of_row) {
  const Place at = place<N>(of_row);
  if (at.column >= columns) return;
  const Pack<T, N> d = load<T, N>(dy + at.row * dy_stride + at.column);
  Pack<T, N> g = load<T, N>(gate + at.row * gate_stride + at.column);
  Pack<T, N> u = load<T, N>(up + at.row * up_stride + at.column);
  for (int k = 0; k < N; ++k) {
    const float dk = to_float(d.v[k]), gk = to_float(g.v[k]), uk = to_float(u.v[k]);
    const Sigmoid<kKind> of_gate(gk);
    const float sigmoid = divide_to<T>(1.0f, 1.0f + exp_to<T>(-of_gate.argument));
    g.v[k] = from_float<T>(dk * uk * sigmoid * (1.0f + gk * (1.0f - sigmoid) * of_gate.slope));
    u.v[k] = from_float<T>(dk * gk * sigmoid);
  }
  store<T, N>(dgate + at.row * dgate_stride + at.column, g);
  store<T, N>(dup + at.row * dup_stride + at.column, u);
}

// A block does a row, so that it can sum what the row's weight gets.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    weighted_rows_backward(const T* dy, int64_t dy_stride, const T* gate, int64_t gate_stride,
                           const T* up, int64_t up_stride, T* dgate, int64_t dgate_stride, T* dup,
                           int64_t dup_stride, int64_t columns, RowWeights weights) {
  const int64_t row = blockIdx.x;
  const float weight = weights.weight[row];
  float sum = 0;
  for (int64_t column = int64_t{threadIdx.x} * N; column < columns;
       column += int64_t{blockDim.x} * N) {
    const Pack<T, N> d = load<T, N>(dy + row * dy_stride + column);
    Pack<T, N> g = load<T, N>(gate + row * gate_stride + column);
    Pack<T, N> u = load<T, N>(up + row * up_stride + column);
    for (int k = 0; k < N; ++k) {
      const float of_sum = to_float(d.v[k]), gk = to_float(g.v[k]), uk = to_float(u.v[k]);
      const float dk = weight * of_sum;
      const float sigmoid = divide_to<T>(1.0f, 1.0f + exp_to<T>(-gk));
      sum += of_sum * uk * gk * sigmoid;
      g.v[k] = from_float<T>(dk * uk * sigmoid * (1.0f + gk * (1.0f - sigmoid)));
      u.v[k] = from_float<T>(dk * gk * sigmoid);
    }
    store<T, N>(dgate + row * dgate_stride + column, g);
    store<T, N>(dup + row * dup_stride + column, u);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) weights.gradient[row] = sum;
}

template <int N>
bool fits(const MatrixView& view) {
  return view.stride % N == 0 && is_aligned(view.data);
}

template <typename T>
T* pointer(const MatrixView& view) {
  return static_cast<T*>(view.data);
}

template <GateKind kKind, typename T, int N>
void launch_forward(MatrixView gate, MatrixView up, MatrixView y, int64_t rows, int64_t columns,
                    Stream stream) {
  const int64_t of_row = divide_up(columns, int64_t{kThreads} * N);
  launch("gated", gated_packs<kKind, T, N>, {rows * of_row, kThreads}, stream, pointer<T>(gate),
         gate.stride, pointer<T>(up), up.stride, pointer<T>(y), y.stride, columns,
         static_cast<unsigned>(of_row));
}

template <GateKind kKind, typename T, int N>
void launch_backward(const GatedGradients& g, int64_t rows, int64_t columns, Stream stream) {
  const int64_t of_row = divide_up(columns, int64_t{kThreads} * N);
  launch("gated_backward", gated_packs_backward<kKind, T, N>, {rows * of_row, kThreads}, stream,
         pointer<T>(g.dy), g.dy.stride, pointer<T>(g.gate), g.gate.stride, pointer<T>(g.up),
         g.up.stride, pointer<T>(g.dgate), g.dgate.stride, pointer<T>(g.dup), g.dup.stride, columns,
         static_cast<unsigned>(of_row));
}

template <typename T, int N>
void launch_weighted(const GatedGradients& g, const RowWeights& weights, int64_t rows,
                     int64_t columns, Stream stream) {
  launch("weighted_swiglu_backward", weighted_rows_backward<T, N>,
         {rows, threads_for(divide_up(columns, N), kThreads)}, stream, pointer<T>(g.dy),
         g.dy.stride, pointer<T>(g.gate), g.gate.stride, pointer<T>(g.up), g.up.stride,
         pointer<T>(g.dgate), g.dgate.stride, pointer<T>(g.dup), g.dup.stride, columns, weights);
}

template <int N>
bool fit(const GatedGradients& g, int64_t columns) {
  return columns % N == 0 && fits<N>(g.dy) && fits<N>(g.gate) && fits<N>(g.up) &&
         fits<N>(g.dgate) && fits<N>(g.dup);
}

// Calls use<kind, T>().
template <typename Use>
void with_kind_and_type(GateKind kind, Element type, const Use& use) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    kind == GateKind::kSilu ? use.template operator()<GateKind::kSilu, T>()
                            : use.template operator()<GateKind::kGeluTanh, T>();
  });
}

}  // namespace

void gated(GateKind kind, Element type, MatrixView gate, MatrixView up, MatrixView y, int64_t rows,
           int64_t columns, Stream stream) {
  if (rows == 0 || columns == 0) return;
  with_kind_and_type(kind, type, [&]<GateKind kKind, typename T>() {
    constexpr int kN = kWide<T>;
    if (columns % kN == 0 && fits<kN>(gate) && fits<kN>(up) && fits<kN>(y)) {
      launch_forward<kKind, T, kN>(gate, up, y, rows, columns, stream);
    } else {
      launch_forward<kKind, T, 1>(gate, up, y, rows, columns, stream);
    }
  });
}

void gated_backward(GateKind kind, Element type, const GatedGradients& g, int64_t rows,
                    int64_t columns, Stream stream) {
  if (rows == 0 || columns == 0) return;
  with_kind_and_type(kind, type, [&]<GateKind kKind, typename T>() {
    constexpr int kN = kWide<T>;
    if (fit<kN>(g, columns)) {
      launch_backward<kKind, T, kN>(g, rows, columns, stream);
    } else {
      launch_backward<kKind, T, 1>(g, rows, columns, stream);
    }
  });
}

void weighted_swiglu_backward(Element type, const GatedGradients& g, const RowWeights& weights,
                              int64_t rows, int64_t columns, Stream stream) {
  if (rows == 0) return;
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kN = kWide<T>;
    if (fit<kN>(g, columns)) {
      launch_weighted<T, kN>(g, weights, rows, columns, stream);
    } else {
      launch_weighted<T, 1>(g, weights, rows, columns, stream);
    }
  });
}

}  // namespace strata::ops::cuda
