#include "op_cases.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "op_arguments.h"
#include "reference.h"
#include "strata/ops/norm_rope.h"

namespace strata::ops {
namespace {

constexpr double kEps = 1e-6;

// Rows are tokens, columns channels of a head; third heads of queries and half as many of keys.
struct Arguments {
  HeadsToTurn queries, keys;
  at::Tensor angles;  // on the CPU, in double
  at::Tensor cos, sin;

  Arguments(const OpSize& size, const Maker& make)
      : angles(at::randn({size.rows, size.columns / 2}, at::kDouble) * 3) {
    queries = {make.random({size.rows, size.third * size.columns}), make.random({size.columns})};
    keys = {make.random({size.rows, (size.third + 1) / 2 * size.columns}),
            make.random({size.columns})};
    cos = angles.cos().to(at::kFloat).to(make.device);
    sin = angles.sin().to(at::kFloat).to(make.device);
  }

  template <RmsNormKind kKind>
  at::Tensor expected(const at::Tensor& x, const at::Tensor& weight) const {
    const at::Tensor heads = x.view({x.size(0), -1, weight.numel()});
    const at::Tensor normed = kKind == RmsNormKind::kGemma
                                  ? reference::gemma_norm(heads, weight, kEps)
                                  : reference::rms_norm(heads, weight, kEps);
    return reference::rope(normed, angles.cos(), angles.sin()).flatten(1);
  }
};

template <RmsNormKind kKind>
OpCase norm_rope_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Arguments a(size, {type, device});
  const auto run = [=] { return norm_rope(a.queries, a.keys, a.cos, a.sin, kEps, kKind); };
  const TurnedQueriesAndKeys y = run();
  const auto of = [&](const HeadsToTurn& heads) {
    return a.expected<kKind>(wide(heads.x), wide(heads.weight));
  };
  return {.comparisons = {{"queries", y.queries.y, of(a.queries)}, {"keys", y.keys.y, of(a.keys)}},
          .run = [=] { run(); },
          .bytes = 2 * bytes_of({a.queries.x, a.keys.x})};
}

// A side of the backward pass with what it should give.
struct Side {
  HeadsToTurn heads;
  at::Tensor dy, rstd;
  at::Tensor written, added;  // the weight's gradient over 7, and added to 1
  at::Tensor dx64 = {}, dweight64 = {};

  HeadsGradient gradient(const at::Tensor& dweight, float beta) const {
    return {dy, rstd, dweight, beta};
  }
};

template <RmsNormKind kKind>
Side side_of(const Arguments& a, const HeadsToTurn& heads, const at::Tensor& rstd,
             const Maker& make) {
  Side side{heads, make.random(heads.x.sizes()), rstd, at::full_like(heads.weight, 7),
            at::full_like(heads.weight, 1)};
  const at::Tensor x64 = leaf(heads.x), w64 = leaf(heads.weight);
  torch::autograd::backward({a.expected<kKind>(x64, w64)}, {wide(side.dy)});
  side.dx64 = x64.grad();
  side.dweight64 = w64.grad();
  return side;
}

template <RmsNormKind kKind>
OpCase norm_rope_backward_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const Arguments a(size, make);
  const TurnedQueriesAndKeys y = norm_rope(a.queries, a.keys, a.cos, a.sin, kEps, kKind);
  const Side q = side_of<kKind>(a, a.queries, y.queries.rstd, make);
  const Side k = side_of<kKind>(a, a.keys, y.keys.rstd, make);
  const auto backward = [=](const HeadsGradient& of_q, const HeadsGradient& of_k) {
    return norm_rope_backward(q.heads, of_q, k.heads, of_k, a.cos, a.sin, kKind);
  };
  const auto dx = backward(q.gradient(q.written, 0), k.gradient(k.written, 0));
  const auto frozen = backward(q.gradient({}, 0), k.gradient({}, 0));
  backward(q.gradient(q.added, 1), k.gradient({}, 0));
  backward(q.gradient({}, 0), k.gradient(k.added, 1));
  OpCase result{.comparisons = {},
                .run = [=] { backward(q.gradient({}, 0), k.gradient({}, 0)); },
                .bytes = 3 * bytes_of({a.queries.x, a.keys.x})};
  for (const auto& [name, side, found, of_frozen] :
       {std::tuple{"queries", q, dx.queries, frozen.queries},
        std::tuple{"keys", k, dx.keys, frozen.keys}}) {
    const std::string of = std::string(" of ") + name;
    result.comparisons.push_back({"dx" + of, found, side.dx64});
    result.comparisons.push_back({"dx of frozen weights" + of, of_frozen, side.dx64});
    result.comparisons.push_back({"dweight" + of, side.written, side.dweight64});
    result.comparisons.push_back({"dweight added" + of, side.added, side.dweight64 + 1});
    const auto value = [=, is_query = side.heads.x.is_same(q.heads.x)](const HeadsToTurn& heads) {
      const auto turned = is_query ? norm_rope(heads, k.heads, a.cos, a.sin, kEps, kKind).queries
                                   : norm_rope(q.heads, heads, a.cos, a.sin, kEps, kKind).keys;
      return weighted(turned.y, side.dy);
    };
    result.slopes.push_back({"x" + of, side.heads.x, found, [=](const at::Tensor& v) {
                               return value({v, side.heads.weight});
                             }});
    result.slopes.push_back(
        {"weight" + of, side.heads.weight, side.written, [=](const at::Tensor& v) {
           return value({side.heads.x, v});
         }});
  }
  return result;
}

}  // namespace

std::vector<OpRow> norm_rope_ops() {
  // On GPUs a lane has one pack of a head, two or four of it.
  const std::vector<OpSize> sizes{{1, 8, 1},    {5, 16, 3},  {40, 64, 8},
                                  {17, 128, 2}, {3, 256, 4}, {2, 512, 1}};
  const OpSize timed{2048, 128, 16};
  return {{"norm_rope", kBoth, sizes, timed, norm_rope_case<RmsNormKind::kLlama>},
          {"norm_rope_backward", kBoth, sizes, timed, norm_rope_backward_case<RmsNormKind::kLlama>},
          {"norm_rope_of_gemma", kBoth, sizes, timed, norm_rope_case<RmsNormKind::kGemma>},
          {"norm_rope_of_gemma_backward", kBoth, sizes, timed,
           norm_rope_backward_case<RmsNormKind::kGemma>}};
}

}  // namespace strata::ops
