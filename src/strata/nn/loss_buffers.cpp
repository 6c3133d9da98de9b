#include "strata/nn/loss_buffers.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "strata/libtorch/planned_device.h"
#include "strata/ops/cross_entropy.h"

namespace strata::nn {
namespace {

constexpr int64_t kChunkBytes = 16 << 20;
// On a GPU a chunk is as long as makes its products run at full rate, and is never widened: the
// kernel reads and writes the type of the logits.
constexpr int64_t kChunkBytesOnGpu = 256 << 20;
// Where the weight trains every chunk but the first reads and writes its whole gradient in fp32,
// eight bytes an element for two operations a row: of fewer rows than these that takes more than a
// quarter of the product's time (at 790 TFLOP/s and 3 TB/s).
constexpr int64_t kTrainedRowsOnGpu = 4096;
constexpr int64_t kLeastTrainedBytesOnGpu = 512 << 20, kMostTrainedBytesOnGpu = 1 << 30;
// Fewer rows would read the weight and its gradient too often for one pass of products.
constexpr int64_t kMinRows = 64;
// Rows of a tile of cuBLAS's products: the rest of a last one would be computed for nothing.
constexpr int64_t kTileRowsOnGpu = 128;
// Rows of logits that do not begin at 16 bytes take cuBLAS to kernels of a fraction of the rate,
// and a word added to a vocabulary is enough for that.
constexpr int64_t kAlignedWordsOnGpu = 8, kRowWordsOnGpu = 64;

int64_t loss_rows_on_gpu(const at::Tensor& h, const Linear& output, bool want_gradient) {
  const int64_t bytes_a_row = output.out_features() * static_cast<int64_t>(h.element_size());
  const int64_t trained_bytes =
      std::clamp(kTrainedRowsOnGpu * bytes_a_row, kLeastTrainedBytesOnGpu, kMostTrainedBytesOnGpu);
  const bool trains = want_gradient && output.weight().requires_grad();
  int64_t rows = std::max(kMinRows, (trains ? trained_bytes : kChunkBytesOnGpu) / bytes_a_row);
  if (rows > kTileRowsOnGpu) rows -= rows % kTileRowsOnGpu;
  return std::min(h.size(0), rows);
}

at::Tensor empty_logits(int64_t rows, int64_t vocab, const at::TensorOptions& options,
                        bool on_gpu) {
  if (!on_gpu || vocab % kAlignedWordsOnGpu == 0) return at::empty({rows, vocab}, options);
  const int64_t stride = (vocab + kRowWordsOnGpu - 1) / kRowWordsOnGpu * kRowWordsOnGpu;
  return at::empty({rows, stride}, options).narrow(1, 0, vocab);
}

}  // namespace

LossBuffers make_loss_buffers(const at::Tensor& h, const Linear& output, bool want_gradient) {
  const bool on_gpu = is_for_cuda(h);
  const int64_t vocab = output.out_features();
  LossBuffers buffers;
  buffers.chunk =
      on_gpu ? loss_rows_on_gpu(h, output, want_gradient) : loss_rows_at_once(h.size(0), vocab);
  buffers.logits = empty_logits(buffers.chunk, vocab, h.options(), on_gpu);
  buffers.widened = h.scalar_type() == at::kFloat || on_gpu
                        ? buffers.logits
                        : at::empty({buffers.chunk, vocab}, h.options().dtype(at::kFloat));
  buffers.rows =
      at::empty({h.size(0), ops::cross_entropy_row_bytes()}, h.options().dtype(at::kByte));
  return buffers;
}

int64_t loss_rows_at_once(int64_t tokens, int64_t vocabulary) {
  const int64_t bytes_a_row = vocabulary * static_cast<int64_t>(sizeof(float));
  return std::min(tokens, std::max(kMinRows, kChunkBytes / bytes_a_row));
}

}  // namespace strata::nn
