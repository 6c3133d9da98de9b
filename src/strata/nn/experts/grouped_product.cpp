// The weights of experts in place, as one tensor, or decoded beside each other, and libtorch's
// operation over them.
#include "strata/nn/experts/grouped_product.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include <ATen/ATen.h>

#include "strata/base/activity_timer.h"
#include "strata/libtorch/cuda_build.h"
#include "strata/libtorch/host_copies.h"
#include "strata/libtorch/planned_device.h"
#include "strata/ops/compute_capability.h"
#include "strata/ops/quant/quantized_matrices.h"

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

bool is_of_all(const std::vector<const Parameter*>& weights) {
  return weights.size() == 1 && weights[0]->shape().size() == 3;
}

int64_t num_experts(const std::vector<const Parameter*>& weights) {
  return is_of_all(weights) ? weights[0]->num_matrices() : std::ssize(weights);
}

// The bytes from one to the next, where all lie at one distance in one piece of memory.
std::optional<int64_t> distance_between(const std::vector<at::Tensor>& parts) {
  const at::Tensor& first = parts[0];
  const auto address = [](const at::Tensor& x) { return reinterpret_cast<intptr_t>(x.data_ptr()); };
  const int64_t distance =
      parts.size() > 1 ? address(parts[1]) - address(first) : static_cast<int64_t>(first.nbytes());
  if (address(first) % kAlignment != 0 || distance % kAlignment != 0 ||
      distance < static_cast<int64_t>(first.nbytes())) {
    return std::nullopt;
  }
  for (size_t e = 0; e < parts.size(); ++e) {
    const int64_t expected = address(first) + static_cast<int64_t>(e) * distance;
    if (address(parts[e]) != expected || !parts[e].is_contiguous() ||
        parts[e].sizes() != first.sizes() || !parts[e].storage().is_alias_of(first.storage())) {
      return std::nullopt;
    }
  }
  return distance;
}

// Rows of matrices and of what comes out must be aligned: the operation pads others.
bool is_aligned(const Parameter& weight, const at::Tensor& x) {
  const int64_t bytes = x.element_size();
  return weight.matrix_rows() * bytes % kAlignment == 0 &&
         weight.matrix_columns() * bytes % kAlignment == 0;
}

// [E, rows, columns] over the weights where they are; undefined where they are not at one distance.
at::Tensor stacked(const std::vector<const Parameter*>& weights) {
  if (is_of_all(weights)) {
    const at::Tensor& all = weights[0]->value();
    const bool is_in_place =
        reinterpret_cast<intptr_t>(all.data_ptr()) % kAlignment == 0 && all.is_contiguous();
    return is_in_place ? all : at::Tensor();
  }
  std::vector<at::Tensor> values;
  values.reserve(weights.size());
  for (const Parameter* weight : weights) values.push_back(weight->value());
  const std::optional<int64_t> distance = distance_between(values);
  if (!distance) return {};
  const at::Tensor& first = values[0];
  return first.as_strided({std::ssize(weights), first.size(0), first.size(1)},
                          {*distance / first.element_size(), first.size(1), 1});
}

std::optional<ops::quant::QuantizedMatrices> stacked_codes(
    const std::vector<const Parameter*>& weights) {
  const Parameter& first = *weights[0];
  if (is_of_all(weights)) {
    return {{first.quantized_value(), first.num_matrices(), first.matrix_bytes()}};
  }
  if (first.quantized_bytes().is_meta()) {  // a plan: units place all of them at such multiples
    const int64_t bytes = (first.stored_numel() + kAlignment - 1) / kAlignment * kAlignment;
    return {{first.quantized_value(), std::ssize(weights), bytes}};
  }
  std::vector<at::Tensor> bytes;
  bytes.reserve(weights.size());
  for (const Parameter* weight : weights) bytes.push_back(weight->quantized_bytes());
  const std::optional<int64_t> distance = distance_between(bytes);
  if (!distance) return std::nullopt;
  return {{first.quantized_value(), std::ssize(weights), *distance}};
}

at::Tensor ends_of(const ExpertRows& rows, at::Device device) {
  if (rows.ends.defined()) return rows.ends;
  const at::Tensor begin = at::tensor(rows.begin, at::kLong);
  return to_device(begin.narrow(0, 1, begin.size(0) - 1).to(at::kInt), device);
}

// Rows of x by `stack` [experts, in, out], of which each expert's end at `ends`.
at::Tensor multiply(const at::Tensor& x, const at::Tensor& stack, const at::Tensor& ends) {
  if (x.is_meta()) return at::empty({x.size(0), stack.size(2)}, x.options());
  return at::_grouped_mm(x, stack, ends);
}

// How many matrices are decoded at once.
int64_t decoded_at_once(int64_t bytes_of_matrix, int64_t experts) {
  constexpr int64_t kMostBytes = 512 << 20;
  const bool are_two = chosen_products() == GroupedProducts::kTwoDecoded;
  return std::clamp<int64_t>(are_two ? 2 : kMostBytes / bytes_of_matrix, 1, experts);
}

at::Tensor multiply_codes(const ops::quant::QuantizedMatrices& codes, const Parameter& weight,
                          const at::Tensor& x, const ExpertRows& rows, bool transposed) {
  const int64_t in = weight.matrix_rows(), out = weight.matrix_columns();
  const int64_t at_once = decoded_at_once(in * out * x.element_size(), codes.count);
  const at::Tensor decoded = at::empty({at_once, in, out}, x.options());
  const at::Tensor factors = transposed ? decoded.transpose(1, 2) : decoded;
  const at::Tensor ends = x.is_meta() ? at::Tensor() : ends_of(rows, x.device());
  if (at_once == codes.count) {
    ops::quant::decode_into(decoded, codes);
    return multiply(x, factors, ends);
  }
  const at::Tensor y = at::empty({x.size(0), factors.size(2)}, x.options());
  for (int64_t first = 0; first < codes.count; first += at_once) {
    const int64_t number = std::min(at_once, codes.count - first);
    const int64_t begin = rows.begin[static_cast<size_t>(first)];
    const int64_t count = rows.begin[static_cast<size_t>(first + number)] - begin;
    if (count == 0) continue;
    ops::quant::decode_into(decoded.narrow(0, 0, number), codes.range(first, number));
    const at::Tensor own_ends =
        ends.defined() ? ends.narrow(0, first, number).sub(begin) : at::Tensor();
    y.narrow(0, begin, count)
        .copy_(multiply(x.narrow(0, begin, count), factors.narrow(0, 0, number), own_ends));
  }
  return y;
}

// Where few experts have rows, decoding those alone is less work.
bool have_most_experts_rows(const ExpertRows& rows) {
  const size_t experts = rows.begin.size() - 1;
  size_t with_rows = 0;
  for (size_t e = 0; e < experts; ++e) with_rows += rows.count(e) > 0 ? 1 : 0;
  return 2 * with_rows >= experts;
}

// Nothing: products one by one.
std::optional<at::Tensor> try_product(const std::vector<const Parameter*>& weights,
                                      const at::Tensor& x, const ExpertRows& rows,
                                      bool transposed) {
  const Parameter& first = *weights[0];
  if (const auto& quantization = first.quantization()) {
    const bool always = chosen_products() != GroupedProducts::kWhereFaster;
    if (quantization->compute.value_or(x.scalar_type()) != x.scalar_type() ||
        !(always || have_most_experts_rows(rows))) {
      return std::nullopt;
    }
    const auto codes = stacked_codes(weights);
    if (!codes) return std::nullopt;
    return multiply_codes(*codes, first, x, rows, transposed);
  }
  const int64_t width = transposed ? first.matrix_rows() : first.matrix_columns();
  if (x.is_meta()) return at::empty({x.size(0), width}, x.options());
  const at::Tensor stack = stacked(weights);
  if (!stack.defined()) return std::nullopt;
  return multiply(x, transposed ? stack.transpose(1, 2) : stack, ends_of(rows, x.device()));
}

// All in the type of x, or all in codes of one form.
bool are_alike(const std::vector<const Parameter*>& weights, const at::Tensor& x) {
  const auto& form = weights[0]->quantization();
  return std::ranges::all_of(weights, [&](const Parameter* weight) {
    const auto& own = weight->quantization();
    if (own.has_value() != form.has_value() || weight->shape() != weights[0]->shape()) return false;
    return own ? own->format == form->format : weight->value().scalar_type() == x.scalar_type();
  });
}

}  // namespace

std::optional<at::Tensor> grouped_product(const std::vector<const Parameter*>& weights,
                                          const at::Tensor& x, const ExpertRows& rows,
                                          bool transposed) {
  const bool always = chosen_products() != GroupedProducts::kWhereFaster;
  if (refusal().is_there || !(always || is_faster(x)) || x.size(0) == 0 ||
      num_experts(weights) + 1 != std::ssize(rows.begin) || !are_alike(weights, x) ||
      !is_aligned(*weights[0], x)) {
    return std::nullopt;
  }
  const ActivityTimer timer(Activity::kMatrixProducts);
  try {
    return try_product(weights, x, rows, transposed);
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
