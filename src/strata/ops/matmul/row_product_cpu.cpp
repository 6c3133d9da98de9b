// The product of one row with a matrix whose columns lie along the inner dimension (y = x W^T of a
// decoder's token) on the CPU: every weight is read once, in the order of memory, which sets the
// pace. Never: packing, checks.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#include "strata/ops/cpu_kernels.h"
#include "strata/ops/instruction_set.h"
#include "strata/ops/lanes.h"
#include "strata/ops/line_buffer.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {
namespace {

// A register of bf16 is one of their even and one of their odd elements as fp32.
template <typename Lanes_, typename Words>
struct Register {
  using Lanes = Lanes_;
  static constexpr int64_t kLanes = sizeof(Lanes) / sizeof(float);
  static STRATA_INLINE void read(const float* from, Lanes& lanes) {
    std::memcpy(&lanes, from, sizeof lanes);
  }
  static STRATA_INLINE void read(const uint16_t* from, Lanes& even, Lanes& odd) {
    Words words;
    std::memcpy(&words, from, sizeof words);
    even = reinterpret_cast<Lanes>(words << 16);
    odd = reinterpret_cast<Lanes>(words & 0xFFFF0000u);
  }
};

// So many columns at a time, whose sums do not wait for each other.
constexpr int kColumns = 4;

struct Task {
  const float* x;  // [inner]; of a whole register of elements the even ones come first
  int64_t inner;
  const uint16_t* columns[kColumns];
  float* sums;
};

template <typename Register>
STRATA_INLINE void multiply_columns(const Task& task) {
  constexpr int64_t kLanes = Register::kLanes, kElements = 2 * kLanes;
  const int64_t whole = task.inner / kElements * kElements;
  typename Register::Lanes sum[kColumns] = {};
  for (int64_t k = 0; k < whole; k += kElements) {
    typename Register::Lanes x_even, x_odd, even[kColumns], odd[kColumns];
    Register::read(task.x + k, x_even);
    Register::read(task.x + k + kLanes, x_odd);
    for (int j = 0; j < kColumns; ++j) {
      Register::read(task.columns[j] + k, even[j], odd[j]);
      sum[j] += x_even * even[j];
      sum[j] += x_odd * odd[j];
    }
  }
  for (int j = 0; j < kColumns; ++j) {
    const typename Register::Lanes lanes = sum[j];
    float total = 0;
    for (int64_t i = 0; i < kLanes; ++i) total += lanes[i];
    for (int64_t k = whole; k < task.inner; ++k) total += task.x[k] * from_bf16(task.columns[j][k]);
    task.sums[j] = total;
  }
}

struct Multiply {
  void (*function)(const Task&);
  int64_t lanes;  // of a register
};

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("arch=x86-64-v4"))) void multiply_512(const Task& task) {
  multiply_columns<Register<Lanes16, Words16>>(task);
}
__attribute__((target("arch=x86-64-v3"))) void multiply_256(const Task& task) {
  multiply_columns<Register<Lanes8, Words8>>(task);
}
#endif
void multiply_128(const Task& task) { multiply_columns<Register<Lanes4, Words4>>(task); }

Multiply best_multiply() {
#if defined(__x86_64__) && defined(__GNUC__)
  const InstructionSet best = best_instruction_set();
  if (best == InstructionSet::kAvx512) return {multiply_512, 16};
  if (best == InstructionSet::kAvx2) return {multiply_256, 8};
#endif
  return {multiply_128, 4};
}

// x in the order in which it is multiplied.
void part_even_and_odd(const uint16_t* x, int64_t inner, int64_t lanes, float* to) {
  const int64_t whole = inner / (2 * lanes) * (2 * lanes);
  for (int64_t k = 0; k < whole; ++k) {
    const int64_t within = k % (2 * lanes);
    to[k - within + within % 2 * lanes + within / 2] = from_bf16(x[k]);
  }
  for (int64_t k = whole; k < inner; ++k) to[k] = from_bf16(x[k]);
}

}  // namespace

void multiply_row_by_columns(const MatmulArguments& m) {
  static const Multiply multiply = best_multiply();
  const LineBuffer x(m.inner);
  part_even_and_odd(static_cast<const uint16_t*>(m.a.data), m.inner, multiply.lanes, x.get());
  const auto* b = static_cast<const uint16_t*>(m.b.data);
  auto* c = static_cast<uint16_t*>(m.c.data);
  const int64_t groups = (m.columns + kColumns - 1) / kColumns;
  constexpr int64_t kProductsOfThread = 32768;  // as many as ATen gives one
  const int64_t grain = kProductsOfThread / std::max<int64_t>(1, m.inner * kColumns);
  at::parallel_for(0, groups, std::max<int64_t>(1, grain), [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * kColumns; first < std::min(end * kColumns, m.columns);
         first += kColumns) {
      const int64_t count = std::min<int64_t>(kColumns, m.columns - first);
      float sums[kColumns];
      Task task{.x = x.get(), .inner = m.inner, .columns = {}, .sums = sums};
      // Where there are fewer, the last one stands for those that are missing.
      for (int64_t j = 0; j < kColumns; ++j) {
        task.columns[j] = b + (first + std::min(j, count - 1)) * m.b.stride;
      }
      multiply.function(task);
      for (int64_t j = 0; j < count; ++j) {
        c[first + j] = to_bf16(m.add ? from_bf16(c[first + j]) + sums[j] : sums[j]);
      }
    }
  });
}

}  // namespace strata::ops::cpu
