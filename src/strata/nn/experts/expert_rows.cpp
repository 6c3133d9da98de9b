// The order of rows: by counting on the host where the choice lies there, else by a stable sort.
// The order of experts over threads.
#include <algorithm>
#include <atomic>
#include <numeric>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "strata/base/activity_timer.h"
#include "strata/libtorch/memory_kind.h"
#include "strata/libtorch/parallel_for.h"
#include "strata/libtorch/plain_view.h"
#include "strata/nn/experts/expert_rows.h"

namespace strata::nn {
namespace {

void count_on_host(const at::Tensor& chosen, int64_t num_experts, ExpertRows& rows) {
  const int64_t num_tokens = chosen.size(0), per_token = chosen.size(1);
  const int64_t* expert = chosen.const_data_ptr<int64_t>();
  rows.begin.assign(static_cast<size_t>(num_experts) + 1, 0);
  for (int64_t i = 0; i < chosen.numel(); ++i) ++rows.begin[static_cast<size_t>(expert[i]) + 1];
  std::partial_sum(rows.begin.begin(), rows.begin.end(), rows.begin.begin());
  std::vector<int64_t> next = rows.begin;
  int64_t* token = rows.token.mutable_data_ptr<int64_t>();
  int64_t* place = rows.place.mutable_data_ptr<int64_t>();
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t j = 0; j < per_token; ++j) {
      const int64_t row = next[static_cast<size_t>(expert[t * per_token + j])]++;
      token[row] = t;
      place[j * num_tokens + t] = row;
    }
  }
}

ExpertRows unsorted(const at::Tensor& chosen) {
  return {at::empty({chosen.numel()}, chosen.options()),
          at::empty({chosen.numel()}, chosen.options()),
          {}};
}

}  // namespace

ExpertRows sort_on_device(const at::Tensor& chosen, int64_t num_experts) {
  ExpertRows rows = unsorted(chosen);
  const int64_t num_tokens = chosen.size(0), per_token = chosen.size(1);
  const at::Tensor flat = chosen.reshape({-1});
  const auto [sorted, order] = at::sort(flat, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor places = at::searchsorted(sorted, at::arange(num_experts + 1, flat.options()));
  rows.ends = places.narrow(0, 1, num_experts).to(at::kInt);
  const at::Tensor begin = places.cpu();
  rows.begin.assign(begin.const_data_ptr<int64_t>(),
                    begin.const_data_ptr<int64_t>() + begin.numel());
  const at::Tensor token = at::floor_divide(order, per_token);
  rows.token.copy_(token);
  const at::Tensor slot = at::remainder(order, per_token).mul_(num_tokens).add_(token);
  rows.place.scatter_(0, slot, at::arange(flat.numel(), flat.options()));
  return rows;
}

ExpertRows sort_by_expert(const at::Tensor& chosen, int64_t num_experts) {
  if (!chosen.is_meta() && !chosen.is_cpu()) return sort_on_device(chosen, num_experts);
  ExpertRows rows = unsorted(chosen);
  if (chosen.is_meta()) {
    const int64_t num_rows = chosen.numel();
    for (int64_t e = 0; e <= num_experts; ++e) rows.begin.push_back(num_rows * e / num_experts);
  } else {
    count_on_host(chosen.contiguous(), num_experts, rows);
  }
  return rows;
}

void for_each_expert(const ExpertRows& rows, bool at_once,
                     const std::function<void(size_t)>& visit) {
  std::vector<size_t> order(rows.begin.size() - 1);
  std::iota(order.begin(), order.end(), size_t{0});
  const auto num_busy = std::ranges::count_if(order, [&](size_t e) { return rows.count(e) > 0; });
  // With fewer a thread the last ones would be waited for; their products are shared instead.
  constexpr int64_t kExpertsPerThread = 4;
  const int64_t num_threads = at::get_num_threads();
  if (!at_once || num_busy < kExpertsPerThread * num_threads) {
    std::ranges::for_each(order, visit);
    return;
  }
  std::ranges::stable_sort(order, std::greater(), [&](size_t e) { return rows.count(e); });
  std::atomic<size_t> next = 0;
  const MemoryKind kind = current_memory_kind;
  at::parallel_for(0, num_threads, /*grain_size=*/1, [&](int64_t, int64_t) {
    const c10::AutoGradMode without_autograd(false);
    const MemoryScope scope(kind);
    for (size_t i = next++; i < order.size(); i = next++) visit(order[i]);
  });
}

at::Tensor rows_of(const at::Tensor& x, const ExpertRows& rows, size_t expert) {
  const int64_t begin = rows.begin[expert], count = rows.count(expert);
  const bool is_followed = c10::GradMode::is_enabled() && x.requires_grad();
  return is_followed ? x.narrow(0, begin, count) : plain_rows(x, begin, count);
}

at::Tensor spread(const at::Tensor& x, const ExpertRows& rows) {
  const ActivityTimer timer(Activity::kElementWise);
  return x.index_select(0, rows.token);
}

at::Tensor weights_of_rows(const at::Tensor& weights, const ExpertRows& rows) {
  const at::Tensor by_place = weights.t().reshape({-1});
  return at::empty_like(by_place).scatter_(0, rows.place, by_place).unsqueeze(1);
}

at::Tensor weights_of_tokens(const at::Tensor& of_rows, const ExpertRows& rows,
                             const at::Tensor& like) {
  return of_rows.index_select(0, rows.place).view({like.size(1), like.size(0)}).t();
}

}  // namespace strata::nn
