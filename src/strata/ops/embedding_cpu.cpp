// Embedding on the CPU. Never: checks.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "strata/ops/cpu_kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

STRATA_VECTORIZED void add_row(const float* x, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

// Positions of the ids, those of one id together and in their order; `starts` marks where each
// id's positions begin, and ends with the number of tokens.
void group_positions(const int64_t* ids, int64_t tokens, std::vector<int64_t>& order,
                     std::vector<int64_t>& starts) {
  order.resize(tokens);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [ids](int64_t a, int64_t b) { return ids[a] < ids[b]; });
  for (int64_t i = 0; i < tokens; ++i) {
    if (i == 0 || ids[order[i]] != ids[order[i - 1]]) starts.push_back(i);
  }
  starts.push_back(tokens);
}

}  // namespace

void embedding(const void* weight, const int64_t* ids, void* y, int64_t tokens, int64_t row_bytes) {
  at::parallel_for(0, tokens, 64, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      std::memcpy(static_cast<char*>(y) + t * row_bytes,
                  static_cast<const char*>(weight) + ids[t] * row_bytes, row_bytes);
    }
  });
}

void embedding_backward(Element type, const void* dy, const int64_t* ids, int64_t tokens,
                        int64_t channels, Element dweight_type, void* dweight, bool add) {
  const int64_t n = channels;
  std::vector<int64_t> order, starts;
  group_positions(ids, tokens, order, starts);
  const auto groups = static_cast<int64_t>(starts.size()) - 1;
  at::parallel_for(0, groups, 32, [&](int64_t begin, int64_t end) {
    std::vector<float> sum(n), scratch(n);
    for (int64_t g = begin; g < end; ++g) {
      void* row = at_index(dweight_type, dweight, ids[order[starts[g]]] * n);
      if (add) {
        copy_row(dweight_type, row, n, sum.data());
      } else {
        std::fill(sum.begin(), sum.end(), 0.0f);
      }
      for (int64_t i = starts[g]; i < starts[g + 1]; ++i) {
        add_row(read_row(type, at_index(type, dy, order[i] * n), n, scratch.data()), sum.data(), n);
      }
      if (dweight_type == Element::kFloat) {
        std::memcpy(row, sum.data(), n * sizeof(float));
      } else {
        narrow(sum.data(), static_cast<uint16_t*>(row), n);
      }
    }
  });
}

}  // namespace strata::ops::cpu
