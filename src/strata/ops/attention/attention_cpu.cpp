// Blocked attention on the CPU, causal or not. A task is one document and one kv head; the query
// heads of the kv head are stacked as rows, so that its keys are read once for all of them.
// Owns: the order of the steps, forward and backward. Never: checks, products
// (attention_products.h).
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "strata/ops/attention/attention_products.h"
#include "strata/ops/attention/position_products.h"

namespace strata::ops::cpu {

namespace {

struct ForwardBuffers {
  HeadFactors keys, values;
  RowFactors q;
  float *out, *scores;
  float *max, *sum, *correction;  // of each row
};

class ForwardTask {
 public:
  ForwardTask(const AttentionArguments& a, AttentionProducts& task, AttentionScratch& scratch)
      : a_(a), task_(task), scratch_(scratch) {}
  void run(const HeadsView& out, int64_t piece);

 private:
  void attend(const QueryBlock& block, ForwardBuffers& s);
  void write(const QueryBlock& block, const HeadsView& out, ForwardBuffers& s) const;

  const AttentionArguments& a_;
  AttentionProducts& task_;
  AttentionScratch& scratch_;
  std::optional<PositionProducts> positions_;
};

void ForwardTask::attend(const QueryBlock& block, ForwardBuffers& s) {
  std::fill_n(s.max, block.rows, -std::numeric_limits<float>::infinity());
  std::fill_n(s.sum, block.rows, 0.0f);
  const int64_t begin = task_.first_seen_key(block), end = task_.seen_keys(block);
  for (int64_t key = begin; key < end; key += task_.block_keys()) {
    const int64_t keys = std::min(task_.block_keys(), end - key);
    task_.count_visible(block, key, keys);
    const ScoreBlock scores = task_.score_block(block, keys, s.scores);
    task_.make_scores(block, s.q, s.keys, key, keys, s.scores);
    task_.scale_query_scores(scores);
    if (positions_) positions_->add_scores(block, s.q.rows, s.keys.as_rows, key, keys, scores);
    if (a_.softcap > 0) cap_scores(scores, a_.softcap, nullptr);
    task_.add_bias(block, key, s.scores);
    task_.hide(block, key, s.scores);
    softmax_block(scores, s.max, s.sum, s.correction);
    task_.drop(block, key, s.scores);
    if (key > begin) scale_rows(s.out, s.correction, block.rows, task_.width());
    task_.apply_scores(block, task_.factors_of(scores, FactorUse::kOneWay), s.values, key, keys,
                       /*add=*/key > begin, s.out);
  }
}

void ForwardTask::write(const QueryBlock& block, const HeadsView& out, ForwardBuffers& s) const {
  task_.for_rows(block, out, [&](void* to, int64_t r) {
    float* row = s.out + r * task_.width();
    scaled_copy(row, 1.0f / s.sum[r], begin_row(a_.type, to, row), a_.channels);
    finish_row(a_.type, row, a_.channels, to);
    if (a_.lse != nullptr) *task_.lse_at(block, r) = s.max[r] + std::log(s.sum[r]);
  });
}

void ForwardTask::run(const HeadsView& out, int64_t) {
  ForwardBuffers s{.keys = task_.load_heads(a_.k, FactorUse::kTransposed),
                   .values = task_.load_heads(a_.v, FactorUse::kOneWay),
                   .q = task_.take_rows(FactorUse::kOneWay),
                   .out = task_.take_row_sums(),
                   .scores = task_.take_scores(),
                   .max = scratch_.take(task_.max_rows()),
                   .sum = scratch_.take(task_.max_rows()),
                   .correction = scratch_.take(task_.max_rows())};
  if (a_.has_positions()) positions_.emplace(a_, task_, scratch_);
  for (int64_t begin = 0; begin < task_.queries(); begin += task_.block_queries()) {
    const QueryBlock block = task_.query_block(begin);
    task_.load_queries(block, s.q);
    attend(block, s);
    write(block, out, s);
  }
}

struct BackwardBuffers {
  HeadFactors keys, values;
  float *dk, *dv;  // sums over the blocks
  RowFactors q, dout;
  float* dq;
  float *scores, *grad;
  float* slopes;       // of capped scores
  float *lse, *delta;  // of each row; delta = sum(p * dp)
};

class BackwardTask {
 public:
  BackwardTask(const AttentionArguments& a, AttentionProducts& task, AttentionScratch& scratch)
      : a_(a), task_(task), scratch_(scratch) {}
  void run(const AttentionGradientViews& g, int64_t piece);

 private:
  bool sees_one_block(const QueryBlock& block) const {
    return task_.seen_keys(block) - task_.first_seen_key(block) <= task_.block_keys();
  }
  void load(const QueryBlock& block, const AttentionGradientViews& g, BackwardBuffers& s) const;
  void differentiate(const QueryBlock& block, BackwardBuffers& s, float* dbias);

  const AttentionArguments& a_;
  AttentionProducts& task_;
  AttentionScratch& scratch_;
  std::optional<PositionProducts> positions_;
};

void BackwardTask::load(const QueryBlock& block, const AttentionGradientViews& g,
                        BackwardBuffers& s) const {
  task_.load_queries(block, s.q);
  task_.load_rows(block, g.dout, s.dout);
  // dout * out is that sum without a look at all keys. Rows of one block take the sum itself: what
  // rounding puts into all of a row's dp cancels in it, and its ds add up to nothing, as they must
  // where keys are much alike.
  if (!sees_one_block(block)) {
    task_.dot_rows_with(block, s.dout, g.out, /*scratch=*/s.dq, s.delta);
  }
  for (int64_t r = 0; r < block.rows; ++r) s.lse[r] = *task_.lse_at(block, r);
}

// With scaled queries q: s = q k^T, p = exp(s - lse), dv += p^T dout, dp = dout v^T,
// ds = p (dp - delta), dk += ds^T q, dq = scale * ds k. With a bias it is part of s, and its
// gradient is ds. With dropout p and dp pass through the mask, except for the p in ds. Where scores
// are capped, the products get ds times the cap's slope.
void BackwardTask::differentiate(const QueryBlock& block, BackwardBuffers& s, float* dbias) {
  const int64_t begin = task_.first_seen_key(block), end = task_.seen_keys(block);
  const float* delta = sees_one_block(block) ? nullptr : s.delta;
  for (int64_t key = begin; key < end; key += task_.block_keys()) {
    const int64_t keys = std::min(task_.block_keys(), end - key);
    task_.count_visible(block, key, keys);
    const ScoreBlock scores = task_.score_block(block, keys, s.scores);
    const ScoreBlock grad = task_.score_block(block, keys, s.grad);
    task_.make_scores(block, s.q, s.keys, key, keys, s.scores);
    task_.scale_query_scores(scores);
    if (positions_) positions_->add_scores(block, s.q.rows, s.keys.as_rows, key, keys, scores);
    if (a_.softcap > 0) cap_scores(scores, a_.softcap, s.slopes);
    task_.add_bias(block, key, s.scores);
    task_.hide(block, key, s.scores);
    task_.make_scores(block, s.dout, s.values, key, keys, s.grad);
    task_.drop(block, key, s.grad);
    softmax_backward_block(scores, s.lse, delta, s.grad);
    task_.add_bias_gradient(block, key, s.grad, dbias);
    if (a_.softcap > 0) multiply_scores(scores, s.slopes, s.grad);
    task_.drop(block, key, s.scores);
    task_.add_transposed(block, task_.factors_of(scores, FactorUse::kTransposed), s.dout, key, keys,
                         s.dv);
    const ScoreFactors of_grad = task_.factors_of(grad, FactorUse::kBothWays);
    task_.add_transposed(block, of_grad, s.q, key, keys, s.dk);
    task_.apply_gradients(block, of_grad, s.keys, key, keys, /*add=*/key > begin, s.dq);
    if (positions_) {
      positions_->add_gradients(block, s.q.rows, s.keys.as_rows, key, keys, grad, s.dq, s.dk);
    }
  }
}

void BackwardTask::run(const AttentionGradientViews& g, int64_t piece) {
  BackwardBuffers s{.keys = task_.load_heads(a_.k, FactorUse::kBothWays),
                    .values = task_.load_heads(a_.v, FactorUse::kTransposed),
                    .dk = task_.take_head_sums(),
                    .dv = task_.take_head_sums(),
                    .q = task_.take_rows(FactorUse::kBothWays),
                    .dout = task_.take_rows(FactorUse::kBothWays),
                    .dq = task_.take_row_sums(),
                    .scores = task_.take_scores(),
                    .grad = task_.take_scores(),
                    .slopes = a_.softcap > 0 ? task_.take_scores() : nullptr,
                    .lse = scratch_.take(task_.max_rows()),
                    .delta = scratch_.take(task_.max_rows())};
  if (a_.has_positions()) positions_.emplace(a_, task_, scratch_, g, piece);
  float* dbias =
      g.dbias == nullptr ? nullptr : g.dbias + task_.document() * a_.q.heads * a_.bias_span;
  for (int64_t begin = 0; begin < task_.queries(); begin += task_.block_queries()) {
    const QueryBlock block = task_.query_block(begin);
    load(block, g, s);
    differentiate(block, s, dbias);
    task_.for_rows(block, g.dq, [&](void* to, int64_t r) {
      float* row = s.dq + r * task_.width();
      scaled_copy(row, a_.scale, begin_row(a_.type, to, row), a_.channels);
      finish_row(a_.type, row, a_.channels, to);
    });
  }
  task_.write_key_gradients(s.dk, g.dk);
  task_.write_value_gradients(s.dv, g.dv);
}

TaskRange range_of(const AttentionArguments& a, int64_t d, int64_t kv_head) {
  TaskRange range{.first_query = a.offsets[d],
                  .first_key = a.offsets[d],
                  .queries = a.offsets[d + 1] - a.offsets[d] - a.key_lead,
                  .keys = a.offsets[d + 1] - a.offsets[d],
                  .kv_head = kv_head,
                  .document = d};
  if (!a.key_offsets.empty()) {
    range.first_key = a.key_offsets[d];
    range.queries = range.keys;
    range.keys = a.key_offsets[d + 1] - range.first_key;
  }
  return range;
}

// Runs a Task with `arguments` for each document and kv head. Documents of a piece come one after
// the other.
template <typename Task, typename Arguments>
void run_tasks(const AttentionArguments& a, const Arguments& arguments, int64_t pieces) {
  const auto documents = static_cast<int64_t>(a.offsets.size()) - 1;
  at::parallel_for(0, pieces * a.k.heads, 1, [&](int64_t begin, int64_t end) {
    const TileScope tiles_of_thread(attention_uses_tiles(a));
    AttentionScratch scratch;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t piece = i / a.k.heads, past = (piece + 1) * documents / pieces;
      for (int64_t d = piece * documents / pieces; d < past; ++d) {
        const TaskRange range = range_of(a, d, i % a.k.heads);
        if (range.keys == 0) continue;
        scratch.start_task();
        const std::unique_ptr<AttentionProducts> products = attention_products(a, range, scratch);
        Task(a, *products, scratch).run(arguments, piece);
      }
    }
  });
}

}  // namespace

void attention(const AttentionArguments& a, HeadsView out) {
  run_tasks<ForwardTask>(a, out, static_cast<int64_t>(a.offsets.size()) - 1);
}

void attention_backward(const AttentionArguments& a, const AttentionGradientViews& g) {
  const auto documents = static_cast<int64_t>(a.offsets.size()) - 1;
  run_tasks<BackwardTask>(a, g, g.position_pieces > 0 ? g.position_pieces : documents);
}

}  // namespace strata::ops::cpu
