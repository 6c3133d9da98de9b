#include "strata/nn/attention/alibi.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include <ATen/ATen.h>

#include "strata/libtorch/host_copies.h"
#include "strata/nn/attention/kv_cache.h"

namespace strata::nn {
namespace {

int64_t longest_document(const ForwardContext& context) {
  if (const KvCache* cache = context.generation.cache) {
    return cache->length + context.batch->num_tokens();
  }
  const std::vector<int64_t>& offsets = context.batch->of_documents().offsets;
  int64_t longest = 1;
  for (size_t d = 1; d < offsets.size(); ++d) {
    longest = std::max(longest, offsets[d] - offsets[d - 1]);
  }
  return longest;
}

}  // namespace

std::vector<float> alibi_slopes(int64_t num_heads) {
  const auto whole = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(num_heads)));
  const auto base = [](int64_t heads) {
    return static_cast<float>(std::exp2(-8.0 / static_cast<double>(heads)));
  };
  std::vector<float> slopes;
  for (int64_t i = 1; i <= whole; ++i) {
    slopes.push_back(std::pow(base(whole), static_cast<float>(i)));
  }
  for (int64_t i = 1; i <= num_heads - whole; ++i) {
    slopes.push_back(std::pow(base(2 * whole), static_cast<float>(2 * i - 1)));
  }
  return slopes;
}

std::vector<float> spread_alibi_slopes(int64_t num_heads) {
  const auto whole = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(num_heads)));
  const auto slope = [whole](int64_t i) {  // counted from 1
    return 1.0f / std::exp2(static_cast<float>(i) * (8.0f / static_cast<float>(whole)));
  };
  std::vector<float> slopes;
  if (whole == num_heads) {
    for (int64_t i = 1; i <= whole; ++i) slopes.push_back(slope(i));
    return slopes;
  }
  for (int64_t i = 2; i <= whole; i += 2) slopes.push_back(slope(i));
  for (int64_t i = 1; i <= whole; i += 2) slopes.push_back(slope(i));
  slopes.resize(static_cast<size_t>(num_heads));
  return slopes;
}

const at::Tensor& Alibi::table(const ForwardContext& context) {
  const int64_t reach = longest_document(context) - 1;
  const at::Device device = context.batch->ids.device();
  if (table_.defined() && table_.device() == device && table_.size(1) / 2 >= reach) return table_;
  const at::Tensor slopes = at::tensor(slopes_, at::kFloat);
  const at::Tensor distances = at::arange(-reach, reach + 1, at::device(device).dtype(at::kFloat));
  table_ = to_device(slopes, device).unsqueeze(1) * distances;
  return table_;
}

}  // namespace strata::nn
