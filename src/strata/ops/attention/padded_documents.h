// Documents of different lengths as a batch of equal ones, for operations that know no documents.
// Owns: where each token goes. Never: what is computed there.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace strata::ops {

// Memory: two tables of integers on the device; none where all documents are equally long.
class PaddedDocuments {
 public:
  // `offsets`: ascending, of at least one document; the first token of the first need not be 0.
  PaddedDocuments(std::span<const int64_t> offsets, at::Device device);

  int64_t count() const { return count_; }
  int64_t longest() const { return longest_; }
  // bool [count, longest]: places without a token; undefined: there are none.
  const at::Tensor& absent() const { return absent_; }

  // [tokens, ...] -> [count, longest, ...]. What stands in a place without a token is one of them.
  at::Tensor pad(const at::Tensor& x) const;
  // The inverse: drops the places without a token.
  at::Tensor unpad(const at::Tensor& x) const;

 private:
  int64_t count_, longest_ = 0;
  at::Tensor token_of_place_;  // int64 [count * longest]; undefined: as they stand
  at::Tensor place_of_token_;  // int64 [tokens]
  at::Tensor absent_;
};

}  // namespace strata::ops
