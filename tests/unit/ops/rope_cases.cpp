#include "op_cases.h"

#include <ATen/ATen.h>

#include "op_arguments.h"
#include "reference.h"
#include "strata/ops/rope.h"

namespace strata::ops {
namespace {

// Rows are tokens, columns channels of a head that turn, third heads; a view into a wider buffer,
// of whose heads the first channels do not turn.
template <RopePairs pairs, int64_t kPlain>
OpCase rope_case(const OpSize& size, at::ScalarType type, at::Device device) {
  const Maker make{type, device};
  const at::Tensor buffer = make.random({size.rows, size.third + 2, kPlain + size.columns});
  const at::Tensor x = buffer.narrow(1, 1, size.third).narrow(2, kPlain, size.columns);
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
  const auto around = [=](const at::Tensor& all) {
    return at::cat({all.narrow(1, 0, 1).flatten(), all.narrow(1, size.third + 1, 1).flatten(),
                    all.narrow(2, 0, kPlain).flatten()});
  };
  const at::Tensor outside = around(buffer), same = around(before);
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
  const OpSize timed{2048, 64, 8};
  // Of 3 the addresses fit no pack; 64 stand before DeepSeek's.
  return {{"rope", kBoth, heads, timed, rope_case<RopePairs::kHalves, 0>},
          {"rope_of_neighbours", kBoth, heads, timed, rope_case<RopePairs::kNeighbours, 0>},
          {"rope_behind_3", kBoth, heads, timed, rope_case<RopePairs::kHalves, 3>},
          {"rope_behind_64", kBoth, heads, timed, rope_case<RopePairs::kNeighbours, 64>}};
}

}  // namespace strata::ops
