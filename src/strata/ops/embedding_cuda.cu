// Embedding on NVIDIA GPUs. Never: checks.
#include "strata/ops/cuda_kernels.h"
#include "strata/ops/device_code.cuh"

namespace strata::ops::cuda {
namespace {

constexpr int kThreads = 128;

// `Word`: as many bytes as fit the row. A row outside the table becomes NaN in every type.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    embedding_rows(const Word* __restrict__ weight, int64_t vocabulary,
                   const int64_t* __restrict__ ids, Word* __restrict__ y, int64_t words) {
  const int64_t id = ids[blockIdx.x];
  Word* to = y + int64_t{blockIdx.x} * words;
  if (id < 0 || id >= vocabulary) {
    Word broken;
    memset(&broken, 0xFF, sizeof(broken));
    for (int64_t i = threadIdx.x; i < words; i += kThreads) to[i] = broken;
    return;
  }
  const Word* from = weight + id * words;
  for (int64_t i = threadIdx.x; i < words; i += kThreads) to[i] = from[i];
}

// The block of the first token of an id adds the rows of all tokens of that id, in their order.
template <typename T>
__global__ void __launch_bounds__(kThreads) embedding_rows_backward(EmbeddingGradient g) {
  const int64_t first = blockIdx.x;
  const int64_t id = g.sorted_ids[first];
  if (first > 0 && g.sorted_ids[first - 1] == id) return;
  if (id < 0 || id >= g.vocabulary) return;
  const int64_t channel = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (channel >= g.channels) return;
  const T* dy = static_cast<const T*>(g.dy);
  const int64_t place = id * g.channels + channel;
  float sum = g.add ? read_element(g.dweight_type, g.dweight, place) : 0.0f;
  // Several at once, though in their order: a token that stands everywhere would wait for every
  // one.
  constexpr int kAtOnce = 8;
  bool goes_on = true;
  for (int64_t i = first; goes_on; i += kAtOnce) {
    float values[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      goes_on = i + k < g.tokens && g.sorted_ids[i + k] == id;
      values[k] = goes_on ? to_float(dy[g.order[i + k] * g.channels + channel]) : 0.0f;
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) sum += values[k];
  }
  write_element(g.dweight_type, g.dweight, place, sum);
}

template <typename Word>
void launch_copy(const void* weight, int64_t vocabulary, const int64_t* ids, void* y,
                 int64_t tokens, int64_t row_bytes, Stream stream) {
  launch("embedding", embedding_rows<Word>, {tokens, kThreads}, stream,
         static_cast<const Word*>(weight), vocabulary, ids, static_cast<Word*>(y),
         row_bytes / static_cast<int64_t>(sizeof(Word)));
}

}  // namespace

void embedding(const void* weight, int64_t vocabulary, const int64_t* ids, void* y, int64_t tokens,
               int64_t row_bytes, Stream stream) {
  if (tokens == 0 || row_bytes == 0) return;
  if (row_bytes % 16 == 0 && is_aligned(weight) && is_aligned(y)) {
    launch_copy<uint4>(weight, vocabulary, ids, y, tokens, row_bytes, stream);
  } else {
    launch_copy<uint16_t>(weight, vocabulary, ids, y, tokens, row_bytes, stream);
  }
}

void embedding_backward(const EmbeddingGradient& g, Stream stream) {
  if (g.tokens == 0 || g.channels == 0) return;
  const Grid grid{
      .blocks = g.tokens, .threads = kThreads, .columns = divide_up(g.channels, kThreads)};
  with_type(g.type, [&](auto zero) {
    launch("embedding_backward", embedding_rows_backward<decltype(zero)>, grid, stream, g);
  });
}

}  // namespace strata::ops::cuda
