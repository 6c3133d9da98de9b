#include "strata/nn/token_rows.h"

#include <unordered_map>

#include <ATen/ATen.h>

#include "strata/ops/matmul/matmul.h"

namespace strata::nn {

TokenRows::TokenRows(std::string name, std::vector<int64_t> ids, int64_t columns)
    : ids_(std::move(ids)),
      rows_(std::move(name), {static_cast<int64_t>(ids_.size()), columns}, at::kFloat) {}

TokenRows::Match TokenRows::match(const at::Tensor& ids) const {
  // Without data (the memory plan) every token may have one.
  if (ids.is_meta()) return {at::empty_like(ids), at::empty_like(ids)};
  std::unordered_map<int64_t, int64_t> row_of;
  for (size_t i = 0; i < ids_.size(); ++i) row_of[ids_[i]] = static_cast<int64_t>(i);
  std::vector<int64_t> tokens, rows;
  const at::Tensor host = ids.cpu().contiguous();
  for (int64_t t = 0; t < host.numel(); ++t) {
    const auto row = row_of.find(host.const_data_ptr<int64_t>()[t]);
    if (row == row_of.end()) continue;
    tokens.push_back(t);
    rows.push_back(row->second);
  }
  return {at::tensor(tokens, at::kLong).to(ids.device()),
          at::tensor(rows, at::kLong).to(ids.device())};
}

at::Tensor TokenRows::index(const at::Tensor& like) const {
  if (like.is_meta()) {
    return at::empty({static_cast<int64_t>(ids_.size())}, like.options().dtype(at::kLong));
  }
  return at::tensor(ids_, at::kLong).to(like.device());
}

void TokenRows::replace(const at::Tensor& ids, at::Tensor out) {
  const Match found = match(ids);
  if (found.tokens.numel() == 0) return;
  out.index_copy_(0, found.tokens, rows_.value().index_select(0, found.rows).to(out.scalar_type()));
}

void TokenRows::replace_backward(const at::Tensor& ids, std::optional<int64_t> padding_id,
                                 at::Tensor dy) {
  const Match found = match(ids);
  if (rows_.requires_grad()) {
    at::Tensor taken = dy.index_select(0, found.tokens).to(at::kFloat);
    if (padding_id && !ids.is_meta()) {
      const at::Tensor is_padding = ids.index_select(0, found.tokens).eq(*padding_id);
      taken.masked_fill_(is_padding.unsqueeze(1), 0);
    }
    at::Tensor gradient = at::zeros(rows_.shape(), taken.options());
    gradient.index_add_(0, found.rows, taken);
    rows_.accumulate_grad(gradient);
  }
  dy.index_fill_(0, found.tokens, 0);
}

void TokenRows::replace_logits(const at::Tensor& h, at::Tensor logits) {
  const at::Tensor values = rows_.value().to(h.scalar_type());
  logits.index_copy_(1, index(logits), ops::thin_product(h, values.t()).to(logits.scalar_type()));
}

void TokenRows::replace_logits_backward(const at::Tensor& h, at::Tensor dlogits, at::Tensor dh) {
  const at::Tensor columns = index(dlogits);
  const at::Tensor own = dlogits.index_select(1, columns);
  if (rows_.requires_grad()) {
    rows_.accumulate_grad(ops::thin_product(own.t(), h).to(at::kFloat));
  }
  dh.add_(ops::thin_product(own, rows_.value().to(own.scalar_type())));
  dlogits.index_fill_(1, columns, 0);
}

}  // namespace strata::nn
