// Embedding: checks and choice of the device. The kernels are in embedding_cpu.cpp and
// embedding_cuda.cu.
#include "strata/ops/embedding.h"

#include <ATen/ATen.h>

#include "strata/base/activity_timer.h"
#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/current_stream.h"

namespace strata::ops {

namespace {

constexpr const char* kOp = "embedding";

void check_ids(const at::Tensor& ids, int64_t vocabulary) {
  if (ids.dim() != 1) check_shape(kOp, "ids", ids, {-1});
  check_type(kOp, "ids", ids, at::kLong);
  check_contiguous(kOp, "ids", ids);
  if (ids.is_meta() || ids.is_cuda())
    return;  // on a GPU the kernel looks, without being waited for
  const int64_t* id = ids.const_data_ptr<int64_t>();
  for (int64_t t = 0; t < ids.size(0); ++t) {
    if (id[t] < 0 || id[t] >= vocabulary) {
      throw FormatError(
          "ids[{}]: found token id {}, expected 0 .. {}; use the tokenizer that belongs to the "
          "model or resize the embeddings",
          t, id[t], vocabulary - 1);
    }
  }
}

void backward_on_cuda(const at::Tensor& dy, const at::Tensor& ids, at::Tensor dweight, float beta) {
  if (beta == 0) dweight.zero_();
  const auto [sorted, order] = at::sort(ids, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  cuda::embedding_backward({.type = element_of(kOp, "dy", dy),
                            .dy = dy.const_data_ptr(),
                            .sorted_ids = sorted.const_data_ptr<int64_t>(),
                            .order = order.const_data_ptr<int64_t>(),
                            .tokens = ids.size(0),
                            .channels = dweight.size(1),
                            .vocabulary = dweight.size(0),
                            .dweight_type = element_of(kOp, "dweight", dweight),
                            .dweight = dweight.mutable_data_ptr(),
                            .add = beta != 0},
                           cuda::current_stream(dy));
}

}  // namespace

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids) {
  check_device_or_plan(kOp, weight);
  if (weight.dim() != 2) check_shape(kOp, "weight", weight, {-1, -1});
  check_contiguous(kOp, "weight", weight);
  check_ids(ids, weight.size(0));
  const Element type = element_of(kOp, "weight", weight);
  at::Tensor y = at::empty({ids.size(0), weight.size(1)}, weight.options());
  if (weight.is_meta()) return y;
  const ActivityTimer timer(Activity::kElementWise);
  const int64_t row_bytes = weight.size(1) * size_bytes(type);
  if constexpr (kHasCuda) {
    if (weight.is_cuda()) {
      cuda::embedding(weight.const_data_ptr(), weight.size(0), ids.const_data_ptr<int64_t>(),
                      y.mutable_data_ptr(), ids.size(0), row_bytes, cuda::current_stream(weight));
      return y;
    }
  }
  cpu::embedding(weight.const_data_ptr(), ids.const_data_ptr<int64_t>(), y.mutable_data_ptr(),
                 ids.size(0), row_bytes);
  return y;
}

void embedding_backward(const at::Tensor& dy, const at::Tensor& ids, at::Tensor dweight,
                        float beta) {
  check_device_or_plan(kOp, dy);
  if (dweight.dim() != 2) check_shape(kOp, "dweight", dweight, {-1, -1});
  check_contiguous(kOp, "dweight", dweight);
  check_ids(ids, dweight.size(0));
  check_shape(kOp, "dy", dy, {ids.size(0), dweight.size(1)});
  check_contiguous(kOp, "dy", dy);
  const Element type = element_of(kOp, "dweight", dweight);
  if (dweight.is_meta()) return;
  const ActivityTimer timer(Activity::kElementWise);
  if constexpr (kHasCuda) {
    if (dweight.is_cuda()) return backward_on_cuda(dy, ids, dweight, beta);
  }
  if (beta == 0) {
    std::memset(dweight.mutable_data_ptr(), 0, dweight.numel() * size_bytes(type));
  }
  cpu::embedding_backward(element_of(kOp, "dy", dy), dy.const_data_ptr(),
                          ids.const_data_ptr<int64_t>(), ids.size(0), dweight.size(1), type,
                          dweight.mutable_data_ptr(), beta != 0);
}

}  // namespace strata::ops
