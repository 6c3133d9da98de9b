// The rows of a mixture's tokens by their experts. Owns: their order, and the way there and back.
// Never: the choice (nn/experts/router.h), what experts do.
//
// T tokens, k experts for each: S = T * k rows, those of one expert one after the other. All memory
// depends on S alone, whatever the router chooses. Every sum is in a fixed order.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace strata::nn {

// Which row belongs to which token.
struct ExpertRows {
  at::Tensor token;            // int64 [S], the token of each row
  at::Tensor place;            // int64 [k * T], the row of each token's first expert, second, ...
  std::vector<int64_t> begin;  // [experts + 1], expert e has the rows begin[e] .. begin[e + 1]
  at::Tensor ends = {};  // int32 [experts], where each expert's rows end, on a device that sorted

  int64_t count(size_t expert) const { return begin[expert + 1] - begin[expert]; }
};

// `chosen` int64 [T, k]: by counting, on the host. Elsewhere as sort_on_device(); without data
// (device meta) all experts get equally many rows.
ExpertRows sort_by_expert(const at::Tensor& chosen, int64_t num_experts);
// The same by a stable sort. Waits for the device once.
ExpertRows sort_on_device(const at::Tensor& chosen, int64_t num_experts);
// Calls `visit` for every expert, in any order. `at_once`: without autograd, on several threads
// where each of them gets some, for products of few rows are too little work to share.
void for_each_expert(const ExpertRows& rows, bool at_once,
                     const std::function<void(size_t)>& visit);

// The rows of one expert among S.
at::Tensor rows_of(const at::Tensor& x, const ExpertRows& rows, size_t expert);
// The rows of tokens [T, columns], each once for every expert of its token: [S, columns].
at::Tensor spread(const at::Tensor& x, const ExpertRows& rows);
// Each row's weight, [S, 1]; and back from [S] to [T, k], as many as `like` has.
at::Tensor weights_of_rows(const at::Tensor& weights, const ExpertRows& rows);
at::Tensor weights_of_tokens(const at::Tensor& of_rows, const ExpertRows& rows,
                             const at::Tensor& like);

}  // namespace strata::nn
