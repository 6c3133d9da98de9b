#include "strata/nn/linear_attention/state_space_chunks.h"

#include <vector>

#include <ATen/ATen.h>

namespace strata::nn {
namespace {

// x [T, ...] as [n, C, ...].
at::Tensor by_place(const at::Tensor& x, const DocumentLanes& lanes) {
  return in_lanes(x, lanes).flatten(0, 1);
}

// What a chunk does by itself.
struct Chunk {
  at::Tensor between;     // [n, h, C, C], how much of token s is left at token l
  at::Tensor from_front;  // [n, C, h], how much of the state before the chunk
  at::Tensor to_end;      // [n, C, h], how much of a token after the chunk
  at::Tensor decay;       // [n, h], how much of the state before it is left behind it
  at::Tensor scaled;      // [n, C, h, P], steps * x
};

Chunk make_chunk(const SpaceInputs& in, const DocumentLanes& lanes) {
  const at::Tensor rates = (in.steps * in.rate).transpose(1, 2);  // [n, h, C]
  const int64_t size = rates.size(2);
  // Sums of the rates after s up to l, as sums and not as differences, which lose digits.
  const at::Tensor between =
      rates.unsqueeze(-1).expand({-1, -1, -1, size}).tril(-1).cumsum(-2).exp_().tril_();
  const at::Tensor from_front = rates.cumsum(-1).exp_();
  if (lanes.is_same.defined()) {
    // Nothing of one document is left in another.
    between.mul_(lanes.is_same.unsqueeze(1));
    from_front.mul_(lanes.goes_on.unsqueeze(1));
  }
  return {.between = between,
          .from_front = from_front.transpose(1, 2),
          .to_end = between.select(2, size - 1).transpose(1, 2),
          .decay = from_front.select(2, size - 1),
          .scaled = in.x * in.steps.unsqueeze(-1)};
}

// [n, C, h, P] <-> [n, h, C, P].
at::Tensor by_head(const at::Tensor& x) { return x.transpose(1, 2); }

// Products over tokens or states of all heads at once: [n, a, b] x [n, b, h, P] -> [n, a, h, P].
at::Tensor product(const at::Tensor& a, const at::Tensor& of_heads) {
  return at::bmm(a, of_heads.reshape({of_heads.size(0), of_heads.size(1), -1}))
      .view({a.size(0), a.size(1), of_heads.size(2), of_heads.size(3)});
}

// [n, a, h, P] x [n, b, h, P] -> [n, a, b], over heads and channels.
at::Tensor product_over_heads(const at::Tensor& a, const at::Tensor& b) {
  return at::bmm(a.reshape({a.size(0), a.size(1), -1}),
                 b.reshape({b.size(0), b.size(1), -1}).transpose(1, 2));
}

at::Tensor transposed(const at::Tensor& x) { return x.transpose(1, 2); }

at::Tensor by_lane(const at::Tensor& x, const DocumentLanes& lanes) {
  return x.unflatten(0, {lanes.num_lanes, lanes.num_chunks});
}

// [L, 1, 1, 1], 0 where chunk n begins a document.
at::Tensor keeps_of(const DocumentLanes& lanes, int64_t chunk) {
  return lanes.keeps.select(1, chunk).view({-1, 1, 1, 1});
}

// [L, 1, h, 1].
at::Tensor decay_of(const Chunk& chunk, const DocumentLanes& lanes, int64_t n) {
  return by_lane(chunk.decay, lanes).select(1, n).unsqueeze(1).unsqueeze(-1);
}

// The state before each chunk, [n, N, h, P].
at::Tensor states_before(const SpaceInputs& in, const Chunk& chunk, const DocumentLanes& lanes,
                         at::Tensor* state) {
  const at::Tensor added =
      by_lane(product(transposed(in.b), chunk.scaled * chunk.to_end.unsqueeze(-1)), lanes);
  const at::Tensor before = at::empty_like(added);
  at::Tensor now =
      state == nullptr ? at::zeros_like(added.select(1, 0)) : state->transpose(0, 1).unsqueeze(0);
  for (int64_t n = 0; n < lanes.num_chunks; ++n) {
    if (n > 0) now = now * keeps_of(lanes, n);
    before.select(1, n).copy_(now);
    now = now * decay_of(chunk, lanes, n) + added.select(1, n);
  }
  if (state != nullptr) *state = now.squeeze(0).transpose(0, 1);
  return before.flatten(0, 1);
}

// The gradient of the state after each chunk, by those of the states before them, [n, N, h, P].
at::Tensor states_backward(const at::Tensor& dbefore, const Chunk& chunk,
                           const DocumentLanes& lanes) {
  const at::Tensor by_chunk = by_lane(dbefore, lanes), dbehind = at::empty_like(by_chunk);
  at::Tensor now = at::zeros_like(by_chunk.select(1, 0));
  for (int64_t n = lanes.num_chunks - 1; n >= 0; --n) {
    dbehind.select(1, n).copy_(now);
    now = now * decay_of(chunk, lanes, n) + by_chunk.select(1, n);
    if (n > 0) now = now * keeps_of(lanes, n);
  }
  return dbehind.flatten(0, 1);
}

// Gradients at the places of the lanes; of the rates' running sums [n, C, h].
struct Parts {
  at::Tensor scaled, b, c, sums;
};

// Through the tokens of a chunk themselves.
Parts within_chunk(const SpaceInputs& in, const Chunk& chunk, const at::Tensor& dy) {
  const at::Tensor products = at::bmm(in.c, transposed(in.b));
  const at::Tensor dscores = at::matmul(by_head(dy), by_head(chunk.scaled).transpose(2, 3));
  const at::Tensor dproducts = dscores.mul_(chunk.between).sum(1);
  const at::Tensor scores = chunk.between * products.unsqueeze(1);
  // All of a token is left at the token itself: large terms, which would cancel out.
  const at::Tensor moved = dscores.mul_(products.unsqueeze(1)).tril_(-1);
  return {.scaled = by_head(at::matmul(scores.transpose(2, 3), by_head(dy))),
          .b = at::bmm(transposed(dproducts), in.c),
          .c = at::bmm(dproducts, in.b),
          .sums = transposed(moved.sum(3) - moved.sum(2))};
}

// Adds what goes through the states before and after the chunks.
void add_states(const SpaceInputs& in, const Chunk& chunk, const at::Tensor& dy,
                const DocumentLanes& lanes, Parts& d) {
  const at::Tensor before = states_before(in, chunk, lanes, nullptr);
  const at::Tensor read = dy * chunk.from_front.unsqueeze(-1);
  d.c.add_(product_over_heads(read, before));
  d.sums = d.sums + (product(in.c, before) * read).sum(3);
  const at::Tensor dbehind = states_backward(product(transposed(in.c), read), chunk, lanes);
  const at::Tensor written = product(in.b, dbehind) * chunk.to_end.unsqueeze(-1);
  d.b.add_(product_over_heads(chunk.scaled * chunk.to_end.unsqueeze(-1), dbehind));
  const at::Tensor moved = (written * chunk.scaled).sum(3);
  moved.select(1, moved.size(1) - 1).zero_();  // the last token is there as a whole
  d.sums.sub_(moved);
  const at::Tensor kept = (dbehind * before).sum(at::IntArrayRef{1, 3}) * chunk.decay;
  d.sums.select(1, d.sums.size(1) - 1).add_(moved.sum(1)).add_(kept);
  d.scaled = d.scaled + written;
}

}  // namespace

SpaceInputs space_inputs(const at::Tensor& x, const at::Tensor& b, const at::Tensor& c,
                         const at::Tensor& steps, const at::Tensor& rate,
                         const DocumentLanes& lanes) {
  return {.x = by_place(x, lanes),
          .b = by_place(b, lanes),
          .c = by_place(c, lanes),
          .steps = by_place(steps, lanes),
          .rate = rate};
}

at::Tensor from_lanes(const at::Tensor& x, const DocumentLanes& lanes) {
  return x.reshape({lanes.num_places(), -1}).index_select(0, lanes.place).view([&] {
    std::vector<int64_t> sizes{lanes.place.size(0)};
    sizes.insert(sizes.end(), x.sizes().begin() + 2, x.sizes().end());
    return sizes;
  }());
}

at::Tensor run_chunks(const SpaceInputs& in, const DocumentLanes& lanes, at::Tensor* state) {
  const Chunk chunk = make_chunk(in, lanes);
  const at::Tensor scores = chunk.between * at::bmm(in.c, transposed(in.b)).unsqueeze(1);
  const at::Tensor within = by_head(at::matmul(scores, by_head(chunk.scaled)));
  const at::Tensor before = states_before(in, chunk, lanes, state);
  return within + product(in.c, before) * chunk.from_front.unsqueeze(-1);
}

SpaceGradients chunks_backward(const SpaceInputs& in, const at::Tensor& dout,
                               const DocumentLanes& lanes) {
  const at::Tensor dy = by_place(dout, lanes);
  const Chunk chunk = make_chunk(in, lanes);
  Parts d = within_chunk(in, chunk, dy);
  add_states(in, chunk, dy, lanes, d);
  // A rate is part of all sums from its token on.
  const at::Tensor behind = at::ones({dy.size(1), dy.size(1)}, dy.options()).triu_();
  const at::Tensor drates = at::matmul(behind, d.sums);
  const at::Tensor dsteps = drates * in.rate + (d.scaled * in.x).sum(3);
  return {.x = from_lanes(d.scaled * in.steps.unsqueeze(-1), lanes),
          .b = from_lanes(d.b, lanes),
          .c = from_lanes(d.c, lanes),
          .steps = from_lanes(dsteps, lanes),
          .rate = (drates * in.steps).sum(at::IntArrayRef{0, 1})};
}

}  // namespace strata::nn
