#include "strata/ops/attention/padded_documents.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "strata/libtorch/host_copies.h"

namespace strata::ops {
namespace {

std::vector<int64_t> with_first(at::IntArrayRef sizes, std::initializer_list<int64_t> first,
                                size_t dropped) {
  std::vector<int64_t> shape(first);
  shape.insert(shape.end(), sizes.begin() + static_cast<std::ptrdiff_t>(dropped), sizes.end());
  return shape;
}

}  // namespace

PaddedDocuments::PaddedDocuments(std::span<const int64_t> offsets, at::Device device)
    : count_(static_cast<int64_t>(offsets.size()) - 1) {
  for (size_t d = 1; d < offsets.size(); ++d) {
    longest_ = std::max(longest_, offsets[d] - offsets[d - 1]);
  }
  const int64_t tokens = offsets.back() - offsets.front();
  if (tokens == count_ * longest_) return;
  at::Tensor token_of_place = at::zeros({count_ * longest_}, at::kLong);
  at::Tensor place_of_token = at::empty({tokens}, at::kLong);
  at::Tensor absent = at::ones({count_, longest_}, at::kBool);
  auto* token_at = token_of_place.mutable_data_ptr<int64_t>();
  auto* place_at = place_of_token.mutable_data_ptr<int64_t>();
  auto* is_absent = absent.mutable_data_ptr<bool>();
  for (int64_t d = 0; d < count_; ++d) {
    const int64_t first = offsets[static_cast<size_t>(d)] - offsets.front();
    const int64_t length = offsets[static_cast<size_t>(d) + 1] - offsets.front() - first;
    for (int64_t i = 0; i < length; ++i) {
      const int64_t place = d * longest_ + i;
      token_at[place] = first + i;
      place_at[first + i] = place;
      is_absent[place] = false;
    }
  }
  token_of_place_ = to_device(token_of_place, device);
  place_of_token_ = to_device(place_of_token, device);
  absent_ = to_device(absent, device);
}

at::Tensor PaddedDocuments::pad(const at::Tensor& x) const {
  const at::Tensor all = token_of_place_.defined() ? x.index_select(0, token_of_place_) : x;
  return all.reshape(with_first(x.sizes(), {count_, longest_}, 1));
}

at::Tensor PaddedDocuments::unpad(const at::Tensor& x) const {
  const at::Tensor all = x.reshape(with_first(x.sizes(), {count_ * longest_}, 2));
  return place_of_token_.defined() ? all.index_select(0, place_of_token_) : all;
}

}  // namespace strata::ops
