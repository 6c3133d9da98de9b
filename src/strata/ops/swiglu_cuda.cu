// SwiGLU on NVIDIA GPUs. Never: checks.
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"

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

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    swiglu_packs(const T* __restrict__ gate, int64_t gate_stride, const T* __restrict__ up,
                 int64_t up_stride, T* __restrict__ y, int64_t y_stride, int64_t columns,
                 unsigned of_row) {
  const Place at = place<N>(of_row);
  if (at.column >= columns) return;
  const Pack<T, N> g = load<T, N>(gate + at.row * gate_stride + at.column);
  Pack<T, N> u = load<T, N>(up + at.row * up_stride + at.column);
  for (int k = 0; k < N; ++k) {
    const float gk = to_float(g.v[k]);
    u.v[k] = from_float<T>(gk * to_float(u.v[k]) / (1.0f + expf(-gk)));
  }
  store<T, N>(y + at.row * y_stride + at.column, u);
}

// Not __restrict__: dgate and dup may be gate and up. Each pack is read before it is written.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    swiglu_packs_backward(const T* dy, int64_t dy_stride, const T* gate, int64_t gate_stride,
                          const T* up, int64_t up_stride, T* dgate, int64_t dgate_stride, T* dup,
                          int64_t dup_stride, int64_t columns, unsigned of_row) {
  const Place at = place<N>(of_row);
  if (at.column >= columns) return;
  const Pack<T, N> d = load<T, N>(dy + at.row * dy_stride + at.column);
  Pack<T, N> g = load<T, N>(gate + at.row * gate_stride + at.column);
  Pack<T, N> u = load<T, N>(up + at.row * up_stride + at.column);
  for (int k = 0; k < N; ++k) {
    const float dk = to_float(d.v[k]), gk = to_float(g.v[k]), uk = to_float(u.v[k]);
    const float sigmoid = 1.0f / (1.0f + expf(-gk));
    g.v[k] = from_float<T>(dk * uk * sigmoid * (1.0f + gk * (1.0f - sigmoid)));
    u.v[k] = from_float<T>(dk * gk * sigmoid);
  }
  store<T, N>(dgate + at.row * dgate_stride + at.column, g);
  store<T, N>(dup + at.row * dup_stride + at.column, u);
}

template <int N>
bool fits(const MatrixView& view) {
  return view.stride % N == 0 && is_aligned(view.data);
}

template <typename T>
T* pointer(const MatrixView& view) {
  return static_cast<T*>(view.data);
}

template <typename T, int N>
void launch_forward(MatrixView gate, MatrixView up, MatrixView y, int64_t rows, int64_t columns,
                    Stream stream) {
  const int64_t of_row = divide_up(columns, int64_t{kThreads} * N);
  launch("swiglu", swiglu_packs<T, N>, {rows * of_row, kThreads}, stream, pointer<T>(gate),
         gate.stride, pointer<T>(up), up.stride, pointer<T>(y), y.stride, columns,
         static_cast<unsigned>(of_row));
}

template <typename T, int N>
void launch_backward(MatrixView dy, MatrixView gate, MatrixView up, MatrixView dgate,
                     MatrixView dup, int64_t rows, int64_t columns, Stream stream) {
  const int64_t of_row = divide_up(columns, int64_t{kThreads} * N);
  launch("swiglu_backward", swiglu_packs_backward<T, N>, {rows * of_row, kThreads}, stream,
         pointer<T>(dy), dy.stride, pointer<T>(gate), gate.stride, pointer<T>(up), up.stride,
         pointer<T>(dgate), dgate.stride, pointer<T>(dup), dup.stride, columns,
         static_cast<unsigned>(of_row));
}

}  // namespace

void swiglu(Element type, MatrixView gate, MatrixView up, MatrixView y, int64_t rows,
            int64_t columns, Stream stream) {
  if (rows == 0 || columns == 0) return;
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kN = kWide<T>;
    if (columns % kN == 0 && fits<kN>(gate) && fits<kN>(up) && fits<kN>(y)) {
      launch_forward<T, kN>(gate, up, y, rows, columns, stream);
    } else {
      launch_forward<T, 1>(gate, up, y, rows, columns, stream);
    }
  });
}

void swiglu_backward(Element type, MatrixView dy, MatrixView gate, MatrixView up, MatrixView dgate,
                     MatrixView dup, int64_t rows, int64_t columns, Stream stream) {
  if (rows == 0 || columns == 0) return;
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kN = kWide<T>;
    const bool is_wide = columns % kN == 0 && fits<kN>(dy) && fits<kN>(gate) && fits<kN>(up) &&
                         fits<kN>(dgate) && fits<kN>(dup);
    if (is_wide) {
      launch_backward<T, kN>(dy, gate, up, dgate, dup, rows, columns, stream);
    } else {
      launch_backward<T, 1>(dy, gate, up, dgate, dup, rows, columns, stream);
    }
  });
}

}  // namespace strata::ops::cuda
