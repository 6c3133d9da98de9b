// Embedding: checks and choice of the device. The kernels are in embedding_cpu.cpp.
#include "strata/ops/embedding.h"

#include "strata/base/activity_timer.h"
#include "strata/ops/check.h"
#include "strata/ops/cpu_kernels.h"

namespace strata::ops {

namespace {

constexpr const char* kOp = "embedding";

void check_ids(const at::Tensor& ids, int64_t vocabulary) {
  if (ids.dim() != 1) check_shape(kOp, "ids", ids, {-1});
  check_type(kOp, "ids", ids, at::kLong);
  check_contiguous(kOp, "ids", ids);
  if (ids.is_meta()) return;
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
  cpu::embedding(weight.const_data_ptr(), ids.const_data_ptr<int64_t>(), y.mutable_data_ptr(),
                 ids.size(0), weight.size(1) * size_bytes(type));
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
  if (beta == 0) {
    std::memset(dweight.mutable_data_ptr(), 0, dweight.numel() * size_bytes(type));
  }
  cpu::embedding_backward(element_of(kOp, "dy", dy), dy.const_data_ptr(),
                          ids.const_data_ptr<int64_t>(), ids.size(0), dweight.size(1), type,
                          dweight.mutable_data_ptr(), beta != 0);
}

}  // namespace strata::ops
