#include "strata/nn/virtual_tokens.h"

#include <ATen/ATen.h>

#include "strata/base/labels.h"
#include "strata/libtorch/host_copies.h"

namespace strata::nn {
namespace {

int64_t num_documents(const std::vector<int64_t>& offsets) {
  return static_cast<int64_t>(offsets.size()) - 1;
}

// Places of the virtual rows, document by document, and of the real ones, on the host.
struct Places {
  at::Tensor in_front, real;
};

Places places(const std::vector<int64_t>& offsets, int64_t count) {
  const int64_t documents = num_documents(offsets);
  std::vector<int64_t> in_front, real;
  in_front.reserve(static_cast<size_t>(documents * count));
  real.reserve(static_cast<size_t>(offsets.back()));
  for (int64_t d = 0; d < documents; ++d) {
    const auto at = static_cast<size_t>(d);
    for (int64_t i = 0; i < count; ++i) in_front.push_back(offsets[at] + d * count + i);
    for (int64_t i = offsets[at]; i < offsets[at + 1]; ++i) real.push_back(i + (d + 1) * count);
  }
  return {at::tensor(in_front, at::kLong), at::tensor(real, at::kLong)};
}

// `values` [T] at the real places of a longer row whose other elements are `filler`.
at::Tensor spread(const at::Tensor& values, int64_t total, const Places& where, int64_t filler) {
  at::Tensor longer = at::full({total}, filler, values.options());
  longer.index_copy_(0, to_device(where.real, values.device()), values);
  return longer;
}

// [D * count], which no real token has, nor any of padding (nn/attention/sequence_parallel.h),
// whose keys are negative and small. They follow from the document alone, whichever others a rank
// has.
at::Tensor keys_in_front(const Batch& batch, int64_t count) {
  constexpr int64_t kBelowPadding = int64_t{1} << 24;
  const std::vector<int64_t> starts(batch.offsets.begin(), batch.offsets.end() - 1);
  const at::Tensor first = batch.token_keys.index_select(
      0, to_device(at::tensor(starts, at::kLong), batch.token_keys.device()));
  const at::Tensor numbers =
      first.mul(count).unsqueeze(1) + at::arange(count, batch.token_keys.options());
  return numbers.add_(kBelowPadding + 1).neg_().view({-1});
}

Batch with_prompt(const Batch& batch, int64_t count) {
  const int64_t documents = num_documents(batch.offsets);
  const int64_t total = batch.num_tokens() + documents * count;
  const Places where = places(batch.offsets, count);
  Batch longer;
  longer.offsets = offsets_with_front(batch.offsets, count);
  longer.ids = spread(batch.ids, total, where, 0);
  longer.token_keys = spread(batch.token_keys, total, where, 0);
  // Positions continue from the virtual tokens'.
  longer.positions = spread(batch.positions + count, total, where, 0);
  longer.virtual_rows = to_device(where.in_front, batch.ids.device());
  longer.token_keys.index_copy_(0, longer.virtual_rows, keys_in_front(batch, count));
  longer.positions.index_copy_(0, longer.virtual_rows,
                               at::arange(count, batch.positions.options()).repeat({documents}));
  longer.targets = spread(batch.targets, total, where, kNotTrained);
  for (size_t d = 0; d < batch.first_labels.size() && count > 0; ++d) {
    longer.targets[longer.offsets[d] + count - 1].fill_(batch.first_labels[d]);
  }
  return longer;
}

}  // namespace

Batch with_virtual_tokens(const Batch& batch, const VirtualTokens& tokens) {
  if (tokens.kind == VirtualTokens::Kind::kPrompt) return with_prompt(batch, tokens.count());
  Batch later = batch;
  later.positions = batch.positions + tokens.count();
  return later;
}

void place_prompt_(at::Tensor x, const Batch& batch, const Parameter& prompt) {
  const at::Tensor rows = prompt.value().to(x.scalar_type());
  x.index_copy_(0, batch.virtual_rows, rows.repeat({num_documents(batch.offsets), 1}));
}

void prompt_backward(const at::Tensor& dx, const Batch& batch, Parameter& prompt) {
  const at::Tensor rows = dx.index_select(0, batch.virtual_rows).to(at::kFloat);
  prompt.accumulate_grad(
      rows.view({num_documents(batch.offsets), prompt.shape()[0], prompt.shape()[1]}).sum(0));
}

at::Tensor prefix_columns(const Parameter& prefix, int64_t begin, int64_t width) {
  return prefix.value().narrow(1, begin, width);
}

void prefix_backward(const at::Tensor& gradient, int64_t begin, Parameter& prefix) {
  const GradTarget target = prefix.grad();
  at::Tensor all = target.tensor;
  if (target.beta == 0.0f) all.zero_();
  all.narrow(1, begin, gradient.size(1)).add_(gradient);
}

at::Tensor with_front(const at::Tensor& rows, const at::Tensor& front,
                      const std::vector<int64_t>& offsets) {
  std::vector<at::Tensor> parts;
  for (size_t d = 0; d + 1 < offsets.size(); ++d) {
    parts.push_back(front);
    parts.push_back(rows.narrow(0, offsets[d], offsets[d + 1] - offsets[d]));
  }
  return parts.empty() ? rows : at::cat(parts, 0);  // no document has a front
}

Split split_front(const at::Tensor& all, int64_t count, const std::vector<int64_t>& offsets) {
  std::vector<at::Tensor> rows;
  at::Tensor front = at::zeros({count, all.size(1)}, all.options().dtype(at::kFloat));
  for (size_t d = 0; d + 1 < offsets.size(); ++d) {
    const int64_t start = offsets[d] + static_cast<int64_t>(d) * count;
    front.add_(all.narrow(0, start, count));
    rows.push_back(all.narrow(0, start + count, offsets[d + 1] - offsets[d]));
  }
  return {rows.empty() ? all : at::cat(rows, 0), front};
}

std::vector<int64_t> offsets_with_front(const std::vector<int64_t>& offsets, int64_t count) {
  std::vector<int64_t> longer = offsets;
  for (size_t d = 0; d < longer.size(); ++d) longer[d] += static_cast<int64_t>(d) * count;
  return longer;
}

}  // namespace strata::nn
