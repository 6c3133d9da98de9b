// Experts beside each other as groups of one size, of which a token has the experts of the best
// alone (DeepSeek-V2). Owns: which groups are left out. Never: the scores of groups (router.h,
// sigmoid_router.h).
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace strata::nn {

struct ExpertGroups {
  int64_t count = 1;   // divides the experts
  int64_t chosen = 1;  // of a token
};

// [T, experts] as [T, groups, experts of a group].
at::Tensor by_group(const at::Tensor& scores, const ExpertGroups& groups);

// By the scores of groups [T, groups]: bool [T, groups, 1], the groups not among the best.
at::Tensor left_out(const at::Tensor& of_groups, const ExpertGroups& groups);

}  // namespace strata::nn
