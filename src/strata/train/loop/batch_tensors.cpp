#include "strata/train/loop/batch_tensors.h"

#include "strata/libtorch/host_copies.h"

namespace strata::train {
namespace {

at::Tensor copy_of(const std::vector<int64_t>& values, at::Device device) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::memcpy(tensor.data_ptr(), values.data(), values.size() * sizeof(int64_t));
  return to_device(tensor, device);
}

}  // namespace

nn::Batch to_tensors(const data::MicroBatch& batch, at::Device device) {
  nn::Batch tensors;
  tensors.ids = copy_of(batch.ids, device);
  tensors.targets = copy_of(batch.targets, at::kCPU);  // the loss looks at them
  tensors.positions = copy_of(batch.positions, device);
  tensors.token_keys = copy_of(batch.token_keys, device);
  if (!batch.token_types.empty()) tensors.token_types = copy_of(batch.token_types, device);
  tensors.offsets = batch.offsets;
  tensors.first_labels = batch.first_labels;
  if (batch.source_offsets.empty()) return tensors;
  nn::Batch source;
  source.ids = copy_of(batch.source_ids, device);
  source.positions = copy_of(batch.source_positions, device);
  source.token_keys = copy_of(batch.source_token_keys, device);
  source.offsets = batch.source_offsets;
  tensors.source = std::make_shared<const nn::Batch>(std::move(source));
  return tensors;
}

}  // namespace strata::train
