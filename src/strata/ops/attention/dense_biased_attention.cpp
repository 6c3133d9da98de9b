#include "strata/ops/attention/dense_biased_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "strata/libtorch/host_copies.h"
#include "strata/libtorch/planned_device.h"
#include "strata/ops/attention/attention_chunks.h"
#include "strata/ops/attention/padded_documents.h"
#include "strata/ops/attention/position_scores.h"
#include "strata/ops/dropout.h"
#include "strata/ops/dropout_keys.h"

namespace strata::ops::dense {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One chunk's part of the call. Shapes: D documents, H heads of q, L queries, S keys, C channels.
class Part {
 public:
  Part(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias,
       const BiasedAttentionOptions& o, const AttentionChunk& chunk)
      : o_(o),
        chunk_(chunk),
        bias_(bias),
        heads_(q.size(1)),
        kv_heads_(k.size(1)),
        queries_(chunk.offsets, q.device()),
        keys_(chunk.key_offsets, q.device()),
        q_(of_queries(q)),
        k_(of_keys(k)),
        v_(of_keys(v)) {}

  // out [tokens, H, C] of the chunk's tokens, lse [H, tokens].
  AttentionResult forward() const {
    at::Tensor scores = make_scores();
    const at::Tensor lse = scores.logsumexp(-1, /*keepdim=*/true);
    const at::Tensor shares = dropped(scores.sub_(lse).exp_());
    const at::Tensor out = product(flat(shares).to(v_.scalar_type()), v_);
    return {tokens_of(out, queries_).to(q_.scalar_type()),
            queries_.unpad(lse.squeeze(-1).transpose(1, 2)).t()};
  }

  // dq of the chunk's tokens. Added to: dk and dv [tokens of all, Hkv, C] of `sums`, and those of
  // the bias [H, span] and of vectors of positions that are defined.
  at::Tensor backward(const at::Tensor& dout, const at::Tensor& out, const at::Tensor& lse,
                      const BiasedAttentionGradients& sums) const {
    at::Tensor gradient = of_queries(dout);
    const at::Tensor of_out =
        (gradient.to(at::kFloat) * of_queries(out)).sum(-1).view({count(), heads_, -1, 1});
    at::Tensor of_rows = queries_.pad(part(lse.t(), chunk_.offsets)).transpose(1, 2).unsqueeze(-1);
    if (queries_.absent().defined()) {
      // A place without a query has no share in anything.
      const at::Tensor absent = queries_.absent().view({count(), 1, chunk_.queries, 1});
      of_rows = of_rows.masked_fill(absent, kInfinity);
    }
    at::Tensor slopes;
    at::Tensor shares = make_scores(&slopes).sub_(of_rows).exp_();
    const at::ScalarType type = q_.scalar_type();
    add_of_keys(product(flat(dropped(shares)).to(type).transpose(1, 2), gradient), sums.dv);
    at::Tensor dscores = dropped(split(product(gradient, v_.transpose(1, 2))));
    dscores.sub_(of_out).mul_(shares);
    shares.reset();  // what follows takes as much again
    if (sums.dbias.defined()) add_bias_gradient(dscores.sum(0), sums.dbias);
    if (slopes.defined()) dscores.mul_(slopes);
    const at::Tensor rounded = flat(dscores).to(type);
    dscores.reset();
    add_of_keys(gradient_of_keys(rounded, sums), sums.dk);
    return tokens_of(gradient_of_queries(rounded, sums), queries_).to(type);
  }

 private:
  int64_t count() const { return queries_.count(); }

  // The rows of the chunk's tokens.
  static at::Tensor part(const at::Tensor& x, const std::vector<int64_t>& offsets) {
    return x.narrow(0, offsets.front(), offsets.back() - offsets.front());
  }
  // [tokens of all, H, C] -> [D * H, L, C].
  at::Tensor of_queries(const at::Tensor& x) const {
    return queries_.pad(part(x, chunk_.offsets)).transpose(1, 2).flatten(0, 1).contiguous();
  }
  // [tokens of all, Hkv, C] -> [D * H, S, C].
  at::Tensor of_keys(const at::Tensor& x) const {
    const at::Tensor padded = keys_.pad(part(x, chunk_.key_offsets)).transpose(1, 2);
    return padded.repeat_interleave(heads_ / kv_heads_, /*dim=*/1).flatten(0, 1);
  }
  // [D * H, L or S, C] -> [tokens, H, C].
  at::Tensor tokens_of(const at::Tensor& x, const PaddedDocuments& documents) const {
    return documents.unpad(x.view({count(), heads_, x.size(1), x.size(2)}).transpose(1, 2));
  }
  // Over the heads of q that share one of k and v.
  at::Tensor summed(const at::Tensor& x) const {
    if (heads_ == kv_heads_) return x;
    return x.reshape({x.size(0), kv_heads_, heads_ / kv_heads_, x.size(2)}).sum(2);
  }
  // Gradients of the chunk's keys, [D * H, S, C], to those of all.
  void add_of_keys(const at::Tensor& x, const at::Tensor& sum) const {
    part(sum, chunk_.key_offsets).add_(summed(tokens_of(x, keys_)));
  }

  at::Tensor split(const at::Tensor& scores) const {
    return scores.view({count(), heads_, chunk_.queries, chunk_.keys});
  }
  at::Tensor flat(const at::Tensor& scores) const { return scores.flatten(0, 1); }

  // Places of the bias: row i begins at first_place() + L - 1 - i.
  int64_t first_place() const { return first_distance(bias_.size(1)); }
  // The place of the chunk's first distance in a table of so many.
  int64_t first_distance(int64_t places) const {
    return places / 2 - chunk_.key_lead - chunk_.queries + 1;
  }

  // The chunk's rows of a table by distances.
  at::Tensor rows_of(const at::Tensor& table) const {
    return table.narrow(0, first_distance(table.size(0)), chunk_.queries + chunk_.keys - 1);
  }
  PositionScores key_positions() const {
    return {PositionSide::kQueries, shape(), q_, rows_of(o_.key_positions)};
  }
  PositionScores query_positions() const {
    return {PositionSide::kKeys, shape(), k_, rows_of(o_.query_positions)};
  }
  PositionShape shape() const { return {count(), heads_, chunk_.queries, chunk_.keys}; }

  // [D * H, L or S, C] of the gradients of scores, in the type of q; those of the tables are added.
  at::Tensor gradient_of_keys(const at::Tensor& dscores,
                              const BiasedAttentionGradients& sums) const {
    // First what takes most memory, while no small tensor lies amid what is free.
    at::Tensor of_positions;
    if (o_.query_positions.defined()) {
      of_positions =
          query_positions().backward(split(dscores), rows_of(sums.dquery_positions), o_.scale);
    }
    at::Tensor dkeys = product(dscores.transpose(1, 2), q_);
    if (of_positions.defined()) dkeys.add_(of_positions);
    return dkeys.mul_(o_.scale);
  }
  at::Tensor gradient_of_queries(const at::Tensor& dscores,
                                 const BiasedAttentionGradients& sums) const {
    at::Tensor of_positions;
    if (o_.key_positions.defined()) {
      of_positions =
          key_positions().backward(split(dscores), rows_of(sums.dkey_positions), o_.scale);
    }
    at::Tensor dqueries = product(dscores, k_);
    if (of_positions.defined()) dqueries.add_(of_positions);
    return dqueries.mul_(o_.scale);
  }

  // fp32 [D, H, L, S]: queries times keys, and what vectors of positions add, scaled.
  at::Tensor make_products() const {
    // Made first: what they copy would lie amid the room that one product leaves to the next.
    std::vector<PositionScores> of_positions;
    if (o_.key_positions.defined()) of_positions.push_back(key_positions());
    if (o_.query_positions.defined()) of_positions.push_back(query_positions());
    at::Tensor scores = split(product(q_, k_.transpose(1, 2)));
    for (const PositionScores& positions : of_positions) positions.add_to(scores);
    return scores.mul_(o_.scale);
  }

  // fp32 [D, H, L, S]. `slopes`: their derivative where they are capped, if asked for.
  at::Tensor make_scores(at::Tensor* slopes = nullptr) const {
    at::Tensor scores = make_products();
    if (o_.softcap > 0) {
      scores.div_(o_.softcap).tanh_();
      if (slopes != nullptr) *slopes = scores.square().neg_().add_(1);
      scores.mul_(o_.softcap);
    }
    if (bias_.defined()) {
      const at::Tensor rows = bias_.unfold(1, chunk_.keys, 1);
      scores.add_(rows.narrow(1, first_place(), chunk_.queries).flip(1));
    }
    if (keys_.absent().defined()) {
      scores.masked_fill_(keys_.absent().view({count(), 1, 1, chunk_.keys}), -kInfinity);
    }
    if (o_.causal || o_.window > 0) {
      const at::Tensor all =
          at::ones({chunk_.queries, chunk_.keys}, scores.options().dtype(at::kBool));
      const int64_t ahead = o_.causal ? 1 : o_.window;
      scores.masked_fill_(all.triu(chunk_.key_lead + ahead), -kInfinity);
      if (o_.window > 0) scores.masked_fill_(all.tril(chunk_.key_lead - o_.window), -kInfinity);
    }
    return scores;
  }

  // The diagonals of [H, L, S], each added to its place.
  void add_bias_gradient(const at::Tensor& dscores, at::Tensor dbias) const {
    const int64_t rows = chunk_.queries, wide = chunk_.keys + rows;
    // With `rows` zeros after each row and a row's length one less, each stands one further on.
    const at::Tensor padded = at::constant_pad_nd(dscores.flip(1), {0, rows}).flatten(1);
    const at::Tensor shifted =
        padded.narrow(1, 0, rows * (wide - 1)).view({heads_, rows, wide - 1});
    dbias.narrow(1, first_place(), wide - 1).add_(shifted.sum(1));
  }

  // Zeroes and scales what dropout does to the probabilities, or to their gradients.
  at::Tensor dropped(const at::Tensor& scores) const {
    if (o_.dropout == 0) return scores;
    std::vector<int64_t> of_heads;
    for (int64_t h = 0; h < heads_; ++h) {
      // In one launch for all heads, whose keys differ: see row_key().
      of_heads.push_back(
          static_cast<int64_t>(mix_key(o_.dropout_key) ^ mix_key(head_key(o_.dropout_key, h))));
    }
    const at::Tensor keys = to_device(at::tensor(of_heads, at::kLong), scores.device());
    const at::Tensor rows = queries_.pad(part(o_.token_keys, chunk_.offsets))
                                .unsqueeze(1)
                                .bitwise_xor(keys.view({1, heads_, 1}));
    const at::Tensor flat_scores = scores.reshape({-1, chunk_.keys});
    return dropout(flat_scores, o_.dropout, rows.reshape({-1}), o_.dropout_key)
        .view(scores.sizes());
  }

  const BiasedAttentionOptions& o_;
  const AttentionChunk& chunk_;
  const at::Tensor& bias_;
  const int64_t heads_, kv_heads_;
  const PaddedDocuments queries_, keys_;
  const at::Tensor q_, k_, v_;  // padded, [D * H, L or S, C]
};

at::Tensor zeros_like_table(const at::Tensor& table) {
  if (!table.defined()) return table;
  return at::zeros(table.sizes(), table.options().dtype(at::kFloat));
}

// Gradients of keys are rounded once: sums of several chunks are kept in fp32.
at::ScalarType type_of_sums(const at::Tensor& k, const std::vector<AttentionChunk>& chunks,
                            const BiasedAttentionOptions& options) {
  return share_keys(chunks, options) ? at::kFloat : k.scalar_type();
}

}  // namespace

AttentionResult biased_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const at::Tensor& bias, const BiasedAttentionOptions& options,
                                 int64_t most_scores) {
  const at::NoGradGuard no_grad;  // the backward is called by hand
  std::vector<at::Tensor> outs, lses;
  for (const AttentionChunk& chunk : attention_chunks(options, q.size(1), most_scores)) {
    const AttentionResult part = Part(q, k, v, bias, options, chunk).forward();
    outs.push_back(part.out);
    lses.push_back(part.lse);
  }
  return {at::cat(outs, 0), at::cat(lses, 1).contiguous()};
}

BiasedAttentionGradients biased_attention_backward(const at::Tensor& dout, const at::Tensor& q,
                                                   const at::Tensor& k, const at::Tensor& v,
                                                   const at::Tensor& bias,
                                                   const AttentionResult& forward,
                                                   const BiasedAttentionOptions& options,
                                                   bool wants_bias, int64_t most_scores) {
  const at::NoGradGuard no_grad;
  const std::vector<AttentionChunk> chunks = attention_chunks(options, q.size(1), most_scores);
  std::vector<at::Tensor> dq;
  BiasedAttentionGradients g;
  g.dk = at::zeros(k.sizes(), k.options().dtype(type_of_sums(k, chunks, options)));
  g.dv = g.dk.clone();
  g.dkey_positions = zeros_like_table(options.key_positions);
  g.dquery_positions = zeros_like_table(options.query_positions);
  if (wants_bias) g.dbias = at::zeros_like(bias);
  for (const AttentionChunk& chunk : chunks) {
    const Part part(q, k, v, bias, options, chunk);
    dq.push_back(part.backward(dout, forward.out, forward.lse, g));
  }
  g.dq = at::cat(dq, 0);
  g.dk = g.dk.to(k.scalar_type());
  g.dv = g.dv.to(v.scalar_type());
  return g;
}

namespace {

// What stands beside vectors of positions: padded tokens, scores, products of all distances.
void imagine_positions(const at::Tensor& q, const BiasedAttentionOptions& options,
                       bool is_backward) {
  const int64_t heads = q.size(1);
  int64_t scores = 0, products = 0, tokens = 0;
  for (const AttentionChunk& chunk : attention_chunks(options, heads, most_scores(true))) {
    const int64_t longer = std::max(chunk.queries, chunk.keys);
    const auto count = static_cast<int64_t>(chunk.offsets.size()) - 1;
    scores = std::max(scores, chunk.num_scores(heads));
    products = std::max(products, count * heads * longer * (chunk.queries + chunk.keys - 1));
    tokens = std::max(tokens, count * heads * longer * q.size(2));
  }
  const auto fp32 = q.options().dtype(at::kFloat);
  const bool is_rounded = q.scalar_type() != at::kFloat;
  std::vector<at::Tensor> taken;
  const auto take = [&](int64_t numel, const at::TensorOptions& type) {
    taken.push_back(at::empty({numel}, type));
  };
  // Scores and their products of distances; or probabilities, dropped.
  const int64_t with_products = scores + std::max(products, scores);
  const int64_t dropped = scores * (options.dropout > 0 ? 2 : 1);
  if (!is_backward) {
    take(4 * tokens, q.options());
    take(std::max(with_products, dropped), fp32);
    return;
  }
  // In the end the gradients of scores, and where each distance has its own, in both types.
  take(5 * tokens + (is_rounded ? scores + products : 0), q.options());
  take(2 * tokens + (is_rounded ? 2 * scores : scores + products), fp32);
}

}  // namespace

void imagine_scores(const at::Tensor& q, const at::Tensor& k, const BiasedAttentionOptions& options,
                    bool is_backward) {
  if (options.has_positions()) return imagine_positions(q, options, is_backward);
  const std::vector<AttentionChunk> chunks = attention_chunks(options, q.size(1), kMostScores);
  int64_t most = 0;
  for (const AttentionChunk& chunk : chunks) {
    most = std::max(most, chunk.num_scores(q.size(1)));
  }
  const auto fp32 = q.options().dtype(at::kFloat);
  // Forward: scores, and the shares rounded. Backward: shares, their gradients, one of them dropped
  // or rounded, slopes of capped ones; sums of keys and values that are rounded at the end.
  std::vector<at::Tensor> taken;
  for (int i = 0; i < (is_backward ? 3 : 1); ++i) taken.push_back(at::empty({most}, fp32));
  taken.push_back(
      at::empty({most}, q.options().dtype(options.dropout > 0 ? at::kFloat : q.scalar_type())));
  if (!is_backward) return;
  if (options.softcap > 0) taken.push_back(at::empty({most}, fp32));
  const at::ScalarType sums = type_of_sums(k, chunks, options);
  if (sums == k.scalar_type()) return;
  for (int i = 0; i < 2; ++i) taken.push_back(at::empty(k.sizes(), fp32));
}

}  // namespace strata::ops::dense
