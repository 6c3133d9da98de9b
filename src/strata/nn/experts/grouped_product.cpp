// The weights of experts in place, as one tensor, and libtorch's operation over it.
#include "strata/nn/experts/grouped_product.h"

#include <atomic>
#include <mutex>

#include <ATen/ATen.h>

#include "strata/base/activity_timer.h"
#include "strata/libtorch/cuda_build.h"
#include "strata/libtorch/host_copies.h"
#include "strata/libtorch/planned_device.h"
#include "strata/ops/compute_capability.h"

namespace strata::nn {
namespace {

// What the operation asks of every matrix and row.
constexpr int64_t kAlignment = 16;

std::atomic<GroupedProducts>& chosen_products() {
  static std::atomic<GroupedProducts> products{GroupedProducts::kWhereFaster};
  return products;
}

struct Refusal {
  std::mutex mutex;
  std::string text;
  std::atomic<bool> is_there{false};
};
Refusal& refusal() {
  static auto* first = new Refusal;
  return *first;
}

// Hopper, and Blackwell of data centres. On others libtorch's operation is a loop for which the
// host waits.
bool has_operation(const at::Tensor& x) {
  // A plan is for this machine's GPUs, where it has some.
  int major = 0;
  if constexpr (kHasCuda) {
    major = ops::cuda::compute_capability_major(x.is_meta() ? 0 : x.device().index());
  }
  // For unknown ones it counts the operation, which takes a little more memory than products one
  // by one.
  const bool is_unknown = x.is_meta() && major == 0;
  return is_unknown || major == 9 || major == 10;
}

bool is_faster(const at::Tensor& x) {
  return is_for_cuda(x) && x.scalar_type() == at::kBFloat16 && has_operation(x);
}

// [E, out, in] over the weights where they are; undefined where they are not at one distance.
at::Tensor stacked(const std::vector<const Parameter*>& weights) {
  const at::Tensor& first = weights[0]->value();
  const int64_t bytes = first.element_size();
  const auto address = [](const at::Tensor& x) { return reinterpret_cast<intptr_t>(x.data_ptr()); };
  const int64_t distance = weights.size() > 1 ? address(weights[1]->value()) - address(first)
                                              : static_cast<int64_t>(first.nbytes());
  // The width of the rows that come out, too: the operation pads others.
  const bool is_aligned = address(first) % kAlignment == 0 && distance % kAlignment == 0 &&
                          first.size(0) * bytes % kAlignment == 0 &&
                          first.size(1) * bytes % kAlignment == 0 && distance % bytes == 0;
  if (!is_aligned || distance < static_cast<int64_t>(first.nbytes())) return {};
  for (size_t e = 0; e < weights.size(); ++e) {
    const at::Tensor& weight = weights[e]->value();
    const int64_t expected = address(first) + static_cast<int64_t>(e) * distance;
    if (address(weight) != expected || !weight.is_contiguous() || weight.sizes() != first.sizes() ||
        !weight.storage().is_alias_of(first.storage())) {
      return {};
    }
  }
  return first.as_strided({static_cast<int64_t>(weights.size()), first.size(0), first.size(1)},
                          {distance / bytes, first.size(1), 1});
}

at::Tensor ends_of(const ExpertRows& rows, at::Device device) {
  if (rows.ends.defined()) return rows.ends;
  const at::Tensor begin = at::tensor(rows.begin, at::kLong);
  return to_device(begin.narrow(0, 1, begin.size(0) - 1).to(at::kInt), device);
}

}  // namespace

std::optional<at::Tensor> grouped_product(const std::vector<const Parameter*>& weights,
                                          const at::Tensor& x, const ExpertRows& rows, bool back) {
  const bool always = chosen_products() == GroupedProducts::kAlways;
  if (refusal().is_there || !(always || is_faster(x)) || x.size(0) == 0) return std::nullopt;
  for (const Parameter* weight : weights) {
    if (weight->quantization() || weight->value().scalar_type() != x.scalar_type()) {
      return std::nullopt;
    }
  }
  const ActivityTimer timer(Activity::kMatrixProducts);
  if (x.is_meta()) {
    return at::empty({x.size(0), weights[0]->shape()[back ? 1 : 0]}, x.options());
  }
  const at::Tensor stack = stacked(weights);
  if (!stack.defined()) return std::nullopt;
  try {
    return at::_grouped_mm(x, back ? stack : stack.transpose(1, 2), ends_of(rows, x.device()));
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::AcceleratorError&) {
    throw;  // of a kernel before this one
  } catch (const c10::Error& error) {
    const std::lock_guard lock(refusal().mutex);
    if (refusal().text.empty()) refusal().text = error.what_without_backtrace();
    refusal().is_there = true;
    return std::nullopt;
  }
}

std::string grouped_product_refusal() {
  const std::lock_guard lock(refusal().mutex);
  return refusal().text;
}

void choose_grouped_products(GroupedProducts products) { chosen_products() = products; }

}  // namespace strata::nn
