#include "strata/nn/linear_attention/gated_delta_rule.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"
#include "strata/libtorch/planned_device.h"
#include "strata/libtorch/without_autograd.h"
#include "strata/nn/chosen_rows.h"
#include "strata/nn/function_state.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double kNormEps = 1e-6;
constexpr int64_t kWorkspaceBytes = int64_t{512} << 20;

// Of some key heads and the value heads that share them: q, k [T, key heads, key_dim], v [T, value
// heads, value_dim], g, beta [T, value heads].
struct Heads {
  at::Tensor q, k, v, g, beta;
};

struct DeltaCall {
  DeltaShape shape;
  DocumentLanes lanes;
  at::Tensor state = {};  // before the first token, [1, key heads, ratio, key_dim, value_dim]
};

struct DeltaResult {
  at::Tensor out;    // fp32 [T, value heads, value_dim]
  at::Tensor state;  // after the last chunk
};

// Over the last dim. (The backward of at::cumsum() turns its input round, for which device meta has
// no kernel in libtorch.)
struct RunningSumFunction : torch::autograd::Function<RunningSumFunction> {
  static at::Tensor forward(AutogradContext* /*context*/, const at::Tensor& x) {
    return at::cumsum(x, -1);
  }

  static variable_list backward(AutogradContext* /*context*/, variable_list gradients) {
    const at::Tensor& dy = gradients[0];
    return {dy + dy.sum(at::IntArrayRef{-1}, /*keepdim=*/true) - at::cumsum(dy, -1)};
  }
};

at::Tensor unit_rows(const at::Tensor& x) {
  return x * at::rsqrt((x * x).sum(at::IntArrayRef{-1}, /*keepdim=*/true) + kNormEps);
}

// What the chunks need of each other's state and what they do by themselves. L lanes, H key heads,
// r value heads a key head, N chunks of C tokens.
struct Chunks {
  std::vector<at::Tensor> q, k;           // [L, H, r, C, key_dim], decayed from front and to end
  std::vector<at::Tensor> read, written;  // [L, H, r, C, key_dim], [L, H, r, C, value_dim]
  std::vector<at::Tensor> scores;         // [L, H, r, C, C]
  std::vector<at::Tensor> decay;          // [L, H, r, 1, 1]
};

// N of them, from [L, H, r, N, ...].
std::vector<at::Tensor> by_chunk(const at::Tensor& x) { return x.unbind(3); }

Chunks make_chunks(const Heads& heads, const DeltaCall& call) {
  const DocumentLanes& lanes = call.lanes;
  const int64_t num_heads = heads.k.size(1), ratio = heads.v.size(1) / num_heads;
  // [L, H, 1, N, C, D] and [L, H, r, N, C, D].
  const auto of_keys = [&](const at::Tensor& x) {
    return unit_rows(in_lanes(x, lanes).permute({0, 3, 1, 2, 4})).unsqueeze(2);
  };
  const auto of_values = [&](const at::Tensor& x) {
    const at::Tensor placed = in_lanes(x, lanes).unflatten(3, {num_heads, ratio});
    return placed.dim() == 5 ? placed.permute({0, 3, 4, 1, 2}) : placed.permute({0, 3, 4, 1, 2, 5});
  };
  const at::Tensor k = of_keys(heads.k);
  const at::Tensor q =
      of_keys(heads.q) * (1.0 / std::sqrt(static_cast<double>(call.shape.key_dim)));
  const at::Tensor v = of_values(heads.v), beta = of_values(heads.beta).unsqueeze(-1);
  const at::Tensor decayed =
      RunningSumFunction::apply(of_values(heads.g));  // since the chunk's front
  const at::Tensor to_token = decayed.exp().unsqueeze(-1);
  const at::Tensor above =
      at::ones({lanes.chunk_size, lanes.chunk_size}, k.options().dtype(at::kBool)).triu_(1);
  const at::Tensor between = (decayed.unsqueeze(-1) - decayed.unsqueeze(-2))
                                 .masked_fill(above, -std::numeric_limits<double>::infinity())
                                 .exp();
  const at::Tensor transposed = k.transpose(-1, -2);
  const at::Tensor solved =
      unit_lower_inverse((at::matmul(k, transposed) * beta * between).tril(-1));
  const at::Tensor last = decayed.narrow(-1, lanes.chunk_size - 1, 1);
  return {.q = by_chunk(q * to_token),
          .k = by_chunk(k * (last - decayed).exp().unsqueeze(-1)),
          .read = by_chunk(at::matmul(solved, k * (beta * to_token))),
          .written = by_chunk(at::matmul(solved, v * beta)),
          .scores = by_chunk(at::matmul(q, transposed) * between),
          .decay = by_chunk(last.exp().unsqueeze(-1))};
}

// Built from operations that autograd follows.
DeltaResult run_chunks(const Heads& heads, const DeltaCall& call) {
  const Chunks chunks = make_chunks(heads, call);
  const auto num_chunks = static_cast<size_t>(call.lanes.num_chunks);
  at::Tensor state = call.state;
  std::vector<at::Tensor> outs;
  for (size_t n = 0; n < num_chunks; ++n) {
    if (n > 0 && call.lanes.num_chunks > 1) {
      const at::Tensor keeps = call.lanes.keeps.select(1, static_cast<int64_t>(n));
      state = state * keeps.view({-1, 1, 1, 1, 1});
    }
    at::Tensor made = chunks.written[n];
    if (state.defined()) made = made - at::matmul(chunks.read[n], state);
    at::Tensor out = at::matmul(chunks.scores[n], made);
    if (state.defined()) out = out + at::matmul(chunks.q[n], state);
    outs.push_back(out);
    const at::Tensor added = at::matmul(chunks.k[n].transpose(-1, -2), made);
    state = state.defined() ? state * chunks.decay[n] + added : added;
  }
  // [L, N, C, H, r, value_dim].
  const at::Tensor all = at::stack(outs, 1).permute({0, 1, 4, 2, 3, 5});
  const at::Tensor rows = all.reshape({call.lanes.num_places(), heads.v.size(1), heads.v.size(2)});
  return {chosen_rows(rows, call.lanes.place), state};
}

// Key heads `first` to `first + count` of whole tensors.
struct HeadRange {
  int64_t first, count;
};

Heads heads_of(const at::Tensor& qkv, const at::Tensor& g, const at::Tensor& beta,
               const DeltaShape& s, const HeadRange& range) {
  const int64_t ratio = s.num_value_heads / s.num_key_heads;
  const auto part = [&](int64_t begin, int64_t heads, int64_t dim, int64_t scale) {
    return qkv.narrow(1, begin, heads * dim)
        .unflatten(1, {heads, dim})
        .narrow(1, range.first * scale, range.count * scale);
  };
  const auto of_head = [&](const at::Tensor& x) {
    return x.narrow(1, range.first * ratio, range.count * ratio);
  };
  return {
      part(0, s.num_key_heads, s.key_dim, 1), part(s.key_channels(), s.num_key_heads, s.key_dim, 1),
      part(2 * s.key_channels(), s.num_value_heads, s.value_dim, ratio), of_head(g), of_head(beta)};
}

// Key heads at a time: what some twenty tensors of a chunk's shapes take in backward.
int64_t heads_at_once(const DeltaCall& call) {
  const DeltaShape& s = call.shape;
  constexpr int64_t kTensors = 20;
  const int64_t ratio = s.num_value_heads / s.num_key_heads;
  const int64_t widest = std::max({s.key_dim, s.value_dim, call.lanes.chunk_size});
  const int64_t bytes = call.lanes.num_places() * ratio * widest * 4 * kTensors;
  return std::clamp<int64_t>(kWorkspaceBytes / std::max<int64_t>(bytes, 1), 1, s.num_key_heads);
}

template <typename Visit>
void for_each_range(const DeltaCall& call, const Visit& visit) {
  const int64_t step = heads_at_once(call), all = call.shape.num_key_heads;
  for (int64_t first = 0; first < all; first += step) {
    visit(HeadRange{first, std::min(step, all - first)});
  }
}

at::Tensor value_heads(const at::Tensor& x, const DeltaShape& s, const HeadRange& range) {
  const int64_t ratio = s.num_value_heads / s.num_key_heads;
  return x.unflatten(1, {s.num_value_heads, s.value_dim})
      .narrow(1, range.first * ratio, range.count * ratio);
}

// [T, value channels].
at::Tensor run_heads(const DeltaCall& call, const at::Tensor& qkv, const at::Tensor& g,
                     const at::Tensor& beta) {
  if (!is_for_cuda(qkv)) return ops::delta_rule(qkv, g, beta, call.shape, call.lanes.chunks());
  const at::Tensor out = at::empty({qkv.size(0), call.shape.value_channels()}, qkv.options());
  for_each_range(call, [&](const HeadRange& range) {
    const Heads heads = heads_of(qkv, g, beta, call.shape, range);
    value_heads(out, call.shape, range).copy_(run_chunks(heads, call).out);
  });
  return out;
}

struct DeltaFunction : torch::autograd::Function<DeltaFunction> {
  static at::Tensor forward(AutogradContext* context, const DeltaCall& call, KeptAttention* kept,
                            const at::Tensor& qkv, const at::Tensor& g, const at::Tensor& beta) {
    const ActivityTimer timer(Activity::kAttention);
    const auto compute = [&] { return ops::AttentionResult{run_heads(call, qkv, g, beta), {}}; };
    const at::Tensor out = once(kept, compute).out;
    context->save_for_backward({qkv, g, beta});
    save_state(context, call);
    return out;
  }

  // Runs the rule again, some heads at a time: what it makes on the way is many times its input.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const ActivityTimer timer(Activity::kAttention);
    const auto& call = load_state<DeltaCall>(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor dout = gradients[0].contiguous();
    if (!is_for_cuda(dout)) {
      const ops::DeltaRuleGradients d = ops::delta_rule_backward(dout, saved[0], saved[1], saved[2],
                                                                 call.shape, call.lanes.chunks());
      return {at::Tensor(), at::Tensor(), d.dqkv, d.dg, d.dbeta};
    }
    const variable_list whole{at::empty_like(saved[0]), at::empty_like(saved[1]),
                              at::empty_like(saved[2])};
    for_each_range(call, [&](const HeadRange& range) {
      const WithAutograd record;
      Heads heads = heads_of(saved[0], saved[1], saved[2], call.shape, range);
      variable_list leaves;
      for (at::Tensor* part : {&heads.q, &heads.k, &heads.v, &heads.g, &heads.beta}) {
        *part = part->detach().requires_grad_();
        leaves.push_back(*part);
      }
      const at::Tensor out = run_chunks(heads, call).out;
      const variable_list parts = torch::autograd::grad(
          {out}, leaves, {value_heads(dout, call.shape, range).to(at::kFloat)});
      const at::NoGradGuard no_grad;
      const Heads d = heads_of(whole[0], whole[1], whole[2], call.shape, range);
      size_t next = 0;
      for (const at::Tensor& part : {d.q, d.k, d.v, d.g, d.beta}) part.copy_(parts[next++]);
    });
    return {at::Tensor(), at::Tensor(), whole[0], whole[1], whole[2]};
  }
};

}  // namespace

at::Tensor gated_delta_rule(const at::Tensor& qkv, const at::Tensor& g, const at::Tensor& beta,
                            const DeltaShape& shape, const DocumentLanes& lanes,
                            KeptAttention* kept) {
  return DeltaFunction::apply(DeltaCall{shape, lanes}, kept, qkv, g, beta);
}

at::Tensor gated_delta_rule_after(at::Tensor& state, const at::Tensor& qkv, const at::Tensor& g,
                                  const at::Tensor& beta, const DeltaShape& shape) {
  const int64_t ratio = shape.num_value_heads / shape.num_key_heads;
  DeltaCall call{shape, make_lanes({0, qkv.size(0)}, qkv.device())};
  if (state.defined()) {
    call.state = state.view({1, shape.num_key_heads, ratio, shape.key_dim, shape.value_dim});
  }
  const DeltaResult result =
      run_chunks(heads_of(qkv, g, beta, shape, {0, shape.num_key_heads}), call);
  state = result.state.view({shape.num_value_heads, shape.key_dim, shape.value_dim});
  return result.out.flatten(1).to(qkv.scalar_type());
}

}  // namespace strata::nn
