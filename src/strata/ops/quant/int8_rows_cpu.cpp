// Memory delivers each byte of the matrix once; libtorch's product would put it into another order
// first. Never: checks.
#include "strata/ops/quant/int8_rows.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "strata/ops/vectorize.h"

namespace strata::ops::quant::cpu {
namespace {

constexpr int64_t kAtOnce = 2048;  // elements of a row of b, widened

STRATA_VECTORIZED void widen(const int8_t* from, int64_t n, int16_t* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i];
}

// Processors multiply and add pairs of such numbers in one instruction.
STRATA_VECTORIZED int32_t dot(const int16_t* a, const int16_t* b, int64_t n) {
  int32_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += int32_t{a[i]} * int32_t{b[i]};
  return sum;
}

}  // namespace

void multiply_byte_rows(const ByteRows& product) {
  const int64_t inner = product.inner, rows = product.rows;
  std::vector<int16_t> a(static_cast<size_t>(rows * inner));
  widen(product.a, rows * inner, a.data());
  constexpr int64_t kElementsOfThread = 65536;
  const int64_t grain = std::max<int64_t>(1, kElementsOfThread / std::max<int64_t>(1, inner));
  at::parallel_for(0, product.columns, grain, [&](int64_t begin, int64_t end) {
    std::vector<int16_t> b(static_cast<size_t>(std::min(kAtOnce, inner)));
    std::vector<int32_t> sums(static_cast<size_t>(rows));
    for (int64_t column = begin; column < end; ++column) {
      std::ranges::fill(sums, 0);
      for (int64_t k = 0; k < inner; k += kAtOnce) {
        const int64_t count = std::min(kAtOnce, inner - k);
        widen(product.b + column * inner + k, count, b.data());
        for (int64_t m = 0; m < rows; ++m) {
          sums[static_cast<size_t>(m)] += dot(a.data() + m * inner + k, b.data(), count);
        }
      }
      for (int64_t m = 0; m < rows; ++m) {
        product.y[m * product.columns + column] = sums[static_cast<size_t>(m)];
      }
    }
  });
}

}  // namespace strata::ops::quant::cpu
