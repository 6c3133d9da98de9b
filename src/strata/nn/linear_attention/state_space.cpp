#include "strata/nn/linear_attention/state_space.h"

#include <algorithm>

#include <torch/csrc/autograd/custom_function.h>

#include "strata/base/activity_timer.h"
#include "strata/libtorch/planned_device.h"
#include "strata/nn/function_state.h"
#include "strata/nn/linear_attention/state_space_chunks.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kWorkspaceBytes = int64_t{512} << 20;

struct StateSpaceCall {
  StateSpaceWeights weights;
  StateSpaceShape shape;
  DocumentLanes lanes;

  at::Tensor rate() const { return weights.log_rate->value().to(at::kFloat).exp().neg(); }
  at::Tensor skip() const { return weights.skip->value().to(at::kFloat); }
};

// Whether the CPU's kernel computes it.
bool has_kernel(const StateSpaceCall& call, const at::Tensor& xbc) {
  return !is_for_cuda(xbc) && !call.lanes.is_same.defined();
}

ops::StateSpaceInputs kernel_inputs(const StateSpaceCall& call, const at::Tensor& xbc,
                                    const at::Tensor& steps) {
  return {xbc, steps, call.rate(), call.skip()};
}

// Heads at a time: what chunks, states and rows of one take in backward.
int64_t heads_at_once(const StateSpaceCall& call) {
  const StateSpaceShape& s = call.shape;
  const int64_t chunk = call.lanes.chunk_size;
  const int64_t of_token = 6 * chunk + 14 * s.head_dim + 7 * s.state_dim * s.head_dim / chunk;
  const int64_t bytes = std::max<int64_t>(call.lanes.num_places() * of_token * 4, 1);
  return std::clamp<int64_t>(kWorkspaceBytes / bytes, 1, s.heads_of_group());
}

// Heads `first` to `first + count`, all of one group.
struct HeadRange {
  int64_t group, first, count;
};

template <typename Visit>
void for_each_range(const StateSpaceCall& call, const Visit& visit) {
  const int64_t step = heads_at_once(call), all = call.shape.heads_of_group();
  for (int64_t group = 0; group < call.shape.num_groups; ++group) {
    for (int64_t first = 0; first < all; first += step) {
      visit(HeadRange{group, group * all + first, std::min(step, all - first)});
    }
  }
}

// x [T, heads, head_dim] of a range, B and C [T, state_dim] of its group: views of whole tensors.
struct Views {
  at::Tensor x, b, c;
};

Views views_of(const at::Tensor& xbc, const StateSpaceShape& s, const HeadRange& range) {
  const auto of_group = [&](int64_t begin) {
    return xbc.narrow(1, begin + range.group * s.state_dim, s.state_dim);
  };
  return {xbc.narrow(1, range.first * s.head_dim, range.count * s.head_dim)
              .unflatten(1, {range.count, s.head_dim}),
          of_group(s.channels()), of_group(s.channels() + s.group_channels())};
}

at::Tensor rows_of(const at::Tensor& y, const StateSpaceShape& s, const HeadRange& range) {
  return y.narrow(1, range.first * s.head_dim, range.count * s.head_dim)
      .unflatten(1, {range.count, s.head_dim});
}

SpaceInputs inputs_of(const StateSpaceCall& call, const at::Tensor& xbc, const at::Tensor& steps,
                      const HeadRange& range) {
  const Views views = views_of(xbc, call.shape, range);
  return space_inputs(views.x, views.b, views.c, steps.narrow(1, range.first, range.count),
                      call.rate().narrow(0, range.first, range.count), call.lanes);
}

// [T, channels]; `state`: before the first token and, when all is done, after the last; null:
// nobody asks.
at::Tensor run_heads(const StateSpaceCall& call, const at::Tensor& xbc, const at::Tensor& steps,
                     at::Tensor* state) {
  const StateSpaceShape& s = call.shape;
  const at::Tensor out = at::empty({xbc.size(0), s.channels()}, xbc.options());
  const at::Tensor skip = call.skip();
  for_each_range(call, [&](const HeadRange& range) {
    at::Tensor of_heads =
        state == nullptr ? at::Tensor() : state->narrow(0, range.first, range.count);
    const SpaceInputs in = inputs_of(call, xbc, steps, range);
    const at::Tensor y = run_chunks(in, call.lanes, state == nullptr ? nullptr : &of_heads);
    const at::Tensor through =
        views_of(xbc, s, range).x * skip.narrow(0, range.first, range.count).unsqueeze(1);
    rows_of(out, s, range).copy_(from_lanes(y, call.lanes).add_(through));
    if (state != nullptr) state->narrow(0, range.first, range.count).copy_(of_heads);
  });
  return out;
}

// The same backward by libtorch's operations, some heads at a time.
ops::StateSpaceGradients heads_backward(const StateSpaceCall& call, const at::Tensor& xbc,
                                        const at::Tensor& steps, const at::Tensor& dy) {
  const StateSpaceShape& s = call.shape;
  const at::Tensor dxbc = at::empty_like(xbc), dsteps = at::empty_like(steps);
  const at::Tensor rate = call.rate(), skip = call.skip();
  const at::Tensor drate = at::empty_like(rate), dskip = at::empty_like(skip);
  at::Tensor db, dc;  // of the group so far
  for_each_range(call, [&](const HeadRange& range) {
    const auto of_heads = [&](const at::Tensor& x, int64_t dim) {
      return x.narrow(dim, range.first, range.count);
    };
    const at::Tensor dout = rows_of(dy, s, range).to(at::kFloat);
    const Views views = views_of(xbc, s, range), d = views_of(dxbc, s, range);
    const SpaceGradients of_range =
        chunks_backward(inputs_of(call, xbc, steps, range), dout, call.lanes);
    const at::Tensor through = dout * of_heads(skip, 0).unsqueeze(1);
    d.x.copy_(of_range.x + through);
    of_heads(dsteps, 1).copy_(of_range.steps);
    of_heads(drate, 0).copy_(of_range.rate);
    of_heads(dskip, 0).copy_((dout * views.x).sum(at::IntArrayRef{0, 2}));
    const bool is_first = range.first == range.group * s.heads_of_group();
    db = is_first ? of_range.b : db.add_(of_range.b);
    dc = is_first ? of_range.c : dc.add_(of_range.c);
    if (range.first + range.count < (range.group + 1) * s.heads_of_group()) return;
    d.b.copy_(db);
    d.c.copy_(dc);
  });
  return {dxbc, dsteps, drate, dskip};
}

struct StateSpaceFunction : torch::autograd::Function<StateSpaceFunction> {
  static at::Tensor forward(AutogradContext* context, const StateSpaceCall& call,
                            KeptAttention* kept, const at::Tensor& xbc, const at::Tensor& steps) {
    const ActivityTimer timer(Activity::kAttention);
    const auto compute = [&] {
      if (has_kernel(call, xbc)) {
        return ops::AttentionResult{
            ops::state_space(kernel_inputs(call, xbc, steps), call.shape, call.lanes.chunks()), {}};
      }
      return ops::AttentionResult{run_heads(call, xbc, steps, nullptr), {}};
    };
    const at::Tensor out = once(kept, compute).out;
    context->save_for_backward({xbc, steps});
    save_state(context, call);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const ActivityTimer timer(Activity::kAttention);
    const auto& call = load_state<StateSpaceCall>(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor dy = gradients[0].contiguous();
    const ops::StateSpaceGradients d =
        has_kernel(call, saved[0])
            ? ops::state_space_backward(dy, kernel_inputs(call, saved[0], saved[1]), call.shape,
                                        call.lanes.chunks())
            : heads_backward(call, saved[0], saved[1], dy);
    if (call.weights.log_rate->requires_grad()) {
      call.weights.log_rate->accumulate_grad(d.drate * call.rate());
    }
    if (call.weights.skip->requires_grad()) call.weights.skip->accumulate_grad(d.dskip);
    return {at::Tensor(), at::Tensor(), d.dxbc, d.dsteps};
  }
};

}  // namespace

at::Tensor state_space(const at::Tensor& xbc, const at::Tensor& steps,
                       const StateSpaceWeights& weights, const StateSpaceShape& shape,
                       const DocumentLanes& lanes, KeptAttention* kept) {
  return StateSpaceFunction::apply(StateSpaceCall{weights, shape, lanes}, kept, xbc, steps);
}

at::Tensor state_space_after(at::Tensor& state, const at::Tensor& xbc, const at::Tensor& steps,
                             const StateSpaceWeights& weights, const StateSpaceShape& shape) {
  if (!state.defined()) {
    state = at::zeros({shape.num_heads, shape.state_dim, shape.head_dim},
                      steps.options().dtype(at::kFloat));
  }
  const StateSpaceCall call{weights, shape, make_lanes({0, xbc.size(0)}, xbc.device())};
  return run_heads(call, xbc, steps, &state);
}

}  // namespace strata::nn
