#include "strata/checkpoint/convert/saved_values.h"

#include <ATen/ops/empty.h>

#include "strata/checkpoint/element_type.h"

namespace strata::checkpoint {

at::Tensor read_tensor(SavedState& state, size_t index) {
  const SavedTensor& tensor = state.tensors()[index];
  at::Tensor value =
      at::empty(tensor.shape, at::TensorOptions().dtype(memory_type_of(tensor.dtype)));
  state.read(index, {static_cast<std::byte*>(value.data_ptr()), value.nbytes()});
  return value;
}

}  // namespace strata::checkpoint
