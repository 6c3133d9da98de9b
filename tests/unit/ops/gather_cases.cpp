#include "op_cases.h"

#include <ATen/ATen.h>

#include "op_arguments.h"
#include "strata/ops/embedding.h"
#include "strata/ops/row_sums.h"

namespace strata::ops {
namespace {

// Third: the vocabulary.
OpCase embedding_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor weight = make.random({size.third, size.columns});
  const at::Tensor ids = make.integers(size.third, size.rows);
  const at::Tensor expected = wide(weight).index_select(0, ids.cpu());
  return {.comparisons = {{"y", ops::embedding(weight, ids), expected}},
          .run = [=] { ops::embedding(weight, ids); },
          .bytes = 2 * bytes_of({expected.to(type)})};
}

OpCase embedding_backward_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor dy = make.random({size.rows, size.columns});
  const at::Tensor weight = make.random({size.third, size.columns});
  const at::Tensor ids = make.integers(size.third, size.rows);
  const at::Tensor expected =
      at::zeros(weight.sizes(), at::kDouble).index_add(0, ids.cpu(), wide(dy));
  at::Tensor written = at::full_like(weight, 3.0, at::kFloat), added = at::ones_like(weight);
  embedding_backward(dy, ids, written, 0);
  embedding_backward(dy, ids, added, 1);
  return {.comparisons = {{"dweight", written, expected}, {"dweight added", added, expected + 1}},
          .slopes = {{"weight", weight, written,
                      [=](const at::Tensor& v) { return weighted(ops::embedding(v, ids), dy); }}},
          .run = [=] { embedding_backward(dy, ids, written, 0); },
          .bytes = bytes_of({dy, written})};
}

// Third: the rows of a token.
template <bool kWeighted>
OpCase row_sums_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const int64_t num_rows = size.rows * size.third;
  const at::Tensor x = make.random({num_rows, size.columns});
  const at::Tensor place = at::randperm(num_rows, at::kLong);
  const at::Tensor weights = Maker{at::kFloat, device}.random({size.rows, size.third});
  const at::Tensor used = kWeighted ? weights : at::Tensor(), there = place.to(device);
  const at::Tensor parts =
      wide(x).index_select(0, place).view({size.third, size.rows, size.columns});
  const at::Tensor factors = kWeighted ? wide(weights).t().unsqueeze(2) : at::ones({}, at::kDouble);
  return {.comparisons = {{"y", row_sums(x, there, size.rows, used), (parts * factors).sum(0)}},
          .run = [=] { row_sums(x, there, size.rows, used); },
          .bytes = bytes_of({x, x.narrow(0, 0, size.rows)})};
}

}  // namespace

std::vector<OpRow> gather_ops() {
  const std::vector<OpSize> table = {{1, 1, 11}, {3, 7, 11}, {200, 129, 5}, {33, 512, 90}};
  const std::vector<OpSize> rows_of_tokens = {
      {1, 1, 1}, {3, 7, 2}, {65, 24, 8}, {200, 129, 3}, {33, 512, 4}, {5, 2056, 8}, {0, 8, 2}};
  const OpSize timed_table{2048, 512, 8192};
  return {{"embedding", kBoth, table, timed_table, embedding_case},
          {"embedding_backward", kBoth, table, timed_table, embedding_backward_case},
          {"row_sums", kBoth, rows_of_tokens, {2048, 512, 8}, row_sums_case<false>},
          {"weighted_row_sums", kBoth, rows_of_tokens, {2048, 512, 8}, row_sums_case<true>}};
}

}  // namespace strata::ops
