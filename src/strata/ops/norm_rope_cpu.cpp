// RMSNorm of heads and their rotation on the CPU: the kernels of both on a few tokens at a time,
// which stay in the cache from one to the other. Never: checks.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#include "strata/ops/cpu_kernels.h"

namespace strata::ops::cpu {

namespace {

constexpr int64_t kTokensAtOnce = 8;

// The part of tokens begin .. end.
struct Part {
  const NormRopeArguments& a;
  const NormRopeHeads& of;
  int64_t begin, end;

  int64_t first() const { return begin * of.heads * a.channels; }
  int64_t size() const { return (end - begin) * of.heads * a.channels; }

  RmsNormArguments norm() const {
    return {.type = a.type,
            .weight_type = of.weight_type,
            .x = at_index(a.type, of.x, first()),
            .weight = of.weight,
            .rstd = of.rstd + begin * of.heads,
            .tokens = (end - begin) * of.heads,
            .channels = a.channels,
            .kind = a.kind};
  }
  // `values`: of all tokens.
  void turn(void* values, bool inverse) const {
    const int64_t half = a.channels / 2;
    rope({.type = a.type,
          .x = {at_index(a.type, values, first()), of.heads * a.channels, a.channels, of.heads},
          .cos = a.cos + begin * half,
          .sin = a.sin + begin * half,
          .tokens = end - begin,
          .half = half,
          .inverse = inverse});
  }
  void* turned_back(const NormRopeGradients& g) const {
    void* to = at_index(a.type, g.dx, first());
    std::memcpy(to, at_index(a.type, g.dy, first()),
                static_cast<size_t>(size() * size_bytes(a.type)));
    turn(g.dx, /*inverse=*/true);
    return to;
  }
};

// Calls use(begin, end) with all tokens, a few at a time.
template <typename Use>
void for_each_part(int64_t tokens, const Use& use) {
  at::parallel_for(0, tokens, kTokensAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t += kTokensAtOnce) use(t, std::min(t + kTokensAtOnce, end));
  });
}

void backward(const NormRopeArguments& a, const NormRopeHeads& of, const NormRopeGradients& g) {
  for_each_part(a.tokens, [&](int64_t begin, int64_t end) {
    const Part part{a, of, begin, end};
    void* turned = part.turned_back(g);
    if (g.dweight != nullptr) return;
    rms_norm_backward(part.norm(), {.dy = turned,
                                    .residual = nullptr,
                                    .dx = turned,
                                    .dweight = nullptr,
                                    .dweight_type = Element::kFloat,
                                    .beta = 0});
  });
  if (g.dweight == nullptr) return;
  // The sum over all rows has an order of its own, which the parts would change.
  rms_norm_backward(Part{a, of, 0, a.tokens}.norm(), {.dy = g.dx,
                                                      .residual = nullptr,
                                                      .dx = g.dx,
                                                      .dweight = g.dweight,
                                                      .dweight_type = g.dweight_type,
                                                      .beta = g.beta});
}

}  // namespace

void norm_rope(const NormRopeArguments& a, void* queries, void* keys, double eps) {
  for_each_part(a.tokens, [&](int64_t begin, int64_t end) {
    for (const auto& [of, y] : {std::pair{&a.queries, queries}, std::pair{&a.keys, keys}}) {
      const Part part{a, *of, begin, end};
      rms_norm(part.norm(), at_index(a.type, y, part.first()), eps);
      part.turn(y, /*inverse=*/false);
    }
  });
}

void norm_rope_backward(const NormRopeArguments& a, const NormRopeGradients& queries,
                        const NormRopeGradients& keys) {
  backward(a, a.queries, queries);
  backward(a, a.keys, keys);
}

}  // namespace strata::ops::cpu
