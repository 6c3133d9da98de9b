// Views that know nothing of autograd, in a tenth of the time of narrow() and view(): it matters
// where a step makes hundreds of thousands of them, of the weights of a mixture's experts. Never:
// arithmetic.
#pragma once

#include <array>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

namespace strata {

namespace plain_view_detail {
inline at::Tensor over_storage_of(const at::Tensor& whole, int64_t first_element) {
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(whole.storage()), whole.key_set(), whole.dtype());
  view.unsafeGetTensorImpl()->set_storage_offset(whole.storage_offset() + first_element);
  return view;
}

inline void check_range(int64_t begin, int64_t count, int64_t available) {
  TORCH_CHECK(begin >= 0 && count >= 0 && count <= available - begin, "view: found ", count,
              " from ", begin, " on, expected them within ", available);
}
}  // namespace plain_view_detail

// The elements of contiguous `whole` from `begin` on, as many as `shape` takes. The view has a
// version of its own: autograd does not notice when `whole` is written.
// Requires: nothing that is recorded reads the view of a tensor that requires a gradient.
// c10::Error: they are not there.
inline at::Tensor plain_view(const at::Tensor& whole, int64_t begin, at::IntArrayRef shape) {
  TORCH_CHECK(whole.is_contiguous(), "view: found a strided tensor, expected a contiguous one");
  at::Tensor view = plain_view_detail::over_storage_of(whole, begin);
  view.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  plain_view_detail::check_range(begin, view.numel(), whole.numel());
  return view;
}

// Rows begin .. begin + count of `whole` [rows, ...]: narrow(0, begin, count), under the same
// rules.
inline at::Tensor plain_rows(const at::Tensor& whole, int64_t begin, int64_t count) {
  plain_view_detail::check_range(begin, count, whole.size(0));
  at::Tensor view = plain_view_detail::over_storage_of(whole, begin * whole.stride(0));
  c10::SmallVector<int64_t, 5> sizes(whole.sizes().begin(), whole.sizes().end());
  sizes[0] = count;
  view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, whole.strides());
  return view;
}

// Columns begin .. begin + count of `whole` [rows, columns]: narrow(1, begin, count), likewise.
inline at::Tensor plain_columns(const at::Tensor& whole, int64_t begin, int64_t count) {
  plain_view_detail::check_range(begin, count, whole.size(1));
  at::Tensor view = plain_view_detail::over_storage_of(whole, begin * whole.stride(1));
  const std::array<int64_t, 2> sizes{whole.size(0), count};
  view.unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef(sizes), whole.strides());
  return view;
}

// Contiguous matrices of one type and width that follow each other in one storage, as one
// [all their rows, columns], likewise; undefined where they do not.
inline at::Tensor joined_rows(at::ArrayRef<at::Tensor> parts) {
  const at::Tensor& first = parts[0];
  int64_t next = first.storage_offset(), num_rows = 0;
  for (const at::Tensor& part : parts) {
    const bool follows = part.storage().is_alias_of(first.storage()) &&
                         part.scalar_type() == first.scalar_type() && part.is_contiguous() &&
                         part.size(1) == first.size(1) && part.storage_offset() == next;
    if (!follows) return {};
    next += part.numel();
    num_rows += part.size(0);
  }
  at::Tensor view = plain_view_detail::over_storage_of(first, 0);
  view.unsafeGetTensorImpl()->set_sizes_contiguous({num_rows, first.size(1)});
  return view;
}

// `whole` [rows, columns] as [columns, rows]: t(), likewise.
inline at::Tensor plain_transposed(const at::Tensor& whole) {
  at::Tensor view = plain_view_detail::over_storage_of(whole, 0);
  const std::array<int64_t, 2> sizes{whole.size(1), whole.size(0)};
  const std::array<int64_t, 2> strides{whole.stride(1), whole.stride(0)};
  view.unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef(sizes),
                                                    at::IntArrayRef(strides));
  return view;
}

}  // namespace strata
