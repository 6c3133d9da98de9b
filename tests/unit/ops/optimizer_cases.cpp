#include "op_cases.h"

#include <ATen/ATen.h>

#include <cmath>

#include "op_arguments.h"
#include "strata/ops/adamw.h"
#include "strata/ops/square_sum.h"

namespace strata::ops {
namespace {

// fp32; the type of the row is that of the copy, of which fp32 is none.
OpCase adamw_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{at::kFloat, device};
  const at::Tensor p = make.random({size.rows}), g = make.random({size.rows});
  at::Tensor copy;
  if (type != at::kFloat) copy = at::empty({size.rows}, p.options().dtype(type));
  const at::Tensor m = make.random({size.rows}, 0.1), v = make.random({size.rows}, 0.1).square_();
  const AdamWStep o{.learning_rate = 0.01,
                    .beta1 = 0.9,
                    .beta2 = 0.999,
                    .eps = 1e-8,
                    .weight_decay = 0.1,
                    .step = 7,
                    .grad_scale = 0.5f};
  const at::Tensor g64 = wide(g) * 0.5;
  const at::Tensor m64 = wide(m) * o.beta1 + g64 * (1 - o.beta1);
  const at::Tensor v64 = wide(v) * o.beta2 + g64.square() * (1 - o.beta2);
  const at::Tensor root = v64.sqrt() / std::sqrt(1 - std::pow(o.beta2, 7)) + o.eps;
  const at::Tensor p64 = wide(p) * (1 - o.learning_rate * o.weight_decay) -
                         o.learning_rate / (1 - std::pow(o.beta1, 7)) * m64 / root;
  adamw_(p, g, m, v, o, copy);
  OpCase result{.comparisons = {{"param", p.clone(), p64},
                                {"exp_avg", m.clone(), m64},
                                {"exp_avg_sq", v.clone(), v64}},
                .run = [=] { adamw_(p, g, m, v, o, copy); },
                .bytes = 7 * bytes_of({p})};
  if (copy.defined()) {
    result.comparisons.push_back({"copy", copy.clone(), p64});
    result.bytes += bytes_of({copy});
  }
  return result;
}

OpCase square_sum_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor x = make.random({size.rows});
  return {
      .comparisons = {{"sum", at::full({}, square_sum(x), at::kDouble), wide(x).square().sum()}},
      .run = [=] { square_sum(x); },
      .bytes = bytes_of({x})};
}

}  // namespace

std::vector<OpRow> optimizer_ops() {
  const std::vector<OpSize> flat = {{1}, {15}, {1000}, {200001}};
  const OpSize shard{4 << 20};
  return {{"adamw", kBoth, flat, shard, adamw_case},
          {"square_sum", kBoth, flat, shard, square_sum_case}};
}

}  // namespace strata::ops
