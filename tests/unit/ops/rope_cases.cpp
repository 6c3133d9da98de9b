#include "op_cases.h"

#include <ATen/ATen.h>

#include "op_arguments.h"
#include "reference.h"
#include "strata/ops/rope.h"

namespace strata::ops {
namespace {

// Rows are tokens, columns channels of a head, third heads; a view into a wider buffer.
template <RopePairs pairs>
OpCase rope_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor buffer = make.random({size.rows, size.third + 2, size.columns});
  const at::Tensor x = buffer.narrow(1, 1, size.third);
  const at::Tensor angles = at::randn({size.rows, size.columns / 2}, at::kDouble) * 3;
  const at::Tensor cos = angles.cos().to(at::kFloat).to(device);
  const at::Tensor sin = angles.sin().to(at::kFloat).to(device);
  const auto rotated =
      pairs == RopePairs::kHalves ? reference::rope : reference::rope_of_neighbours;
  const at::Tensor expected = rotated(wide(x), angles.cos(), angles.sin());
  const auto turned = [=](const at::Tensor& v, bool inverse) {
    const at::Tensor copy = v.clone();
    apply_rope_(copy, cos, sin, inverse, pairs);
    return copy;
  };
  const at::Tensor before = buffer.clone(), original = x.clone(), dy = make.random(x.sizes());
  apply_rope_(x, cos, sin, /*inverse=*/false, pairs);
  const at::Tensor outside = at::cat({buffer.narrow(1, 0, 1), buffer.narrow(1, size.third + 1, 1)});
  const at::Tensor same = at::cat({before.narrow(1, 0, 1), before.narrow(1, size.third + 1, 1)});
  return {.comparisons = {{"y", x.clone(), expected},
                          {"turned back", turned(x, true), wide(original)},
                          {"neighbours", outside, wide(same)}},
          .slopes = {{"x", original, turned(dy, true),
                      [=](const at::Tensor& v) { return weighted(turned(v, false), dy); }}},
          .run = [=] { apply_rope_(x, cos, sin, /*inverse=*/false, pairs); },
          .bytes = 2 * static_cast<double>(x.numel() * x.element_size())};
}

}  // namespace

std::vector<OpRow> rope_ops() {
  const std::vector<OpSize> heads{{1, 2, 1}, {5, 6, 3}, {40, 64, 8}, {17, 34, 2}};
  return {{"rope", kBoth, heads, {2048, 64, 8}, rope_case<RopePairs::kHalves>},
          {"rope_of_neighbours", kBoth, heads, {2048, 64, 8}, rope_case<RopePairs::kNeighbours>}};
}

}  // namespace strata::ops
