// Blocked attention on the CPU in fp32, causal or not. A task is one document and one kv head; the
// query heads of the kv head are stacked as rows, so that its keys are read once for all of them.
// Owns: the order of the steps, forward and backward. Never: checks.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "strata/ops/attention/attention_task.h"

namespace strata::ops::cpu {

namespace {

struct ForwardBuffers {
  float *transposed_keys, *values;
  float *q, *out, *scores;
  float *max, *sum, *correction;  // of each row
};

class ForwardTask : AttentionTask {
 public:
  using AttentionTask::AttentionTask;
  void run(const HeadsView& out);

 private:
  void attend(const QueryBlock& block, ForwardBuffers& s);
  void write(const QueryBlock& block, const HeadsView& out, ForwardBuffers& s) const;
};

void ForwardTask::attend(const QueryBlock& block, ForwardBuffers& s) {
  std::fill_n(s.max, block.rows, -std::numeric_limits<float>::infinity());
  std::fill_n(s.sum, block.rows, 0.0f);
  const int64_t begin = first_seen_key(block), end = seen_keys(block);
  for (int64_t key = begin; key < end; key += block_keys_) {
    const int64_t keys = std::min(block_keys_, end - key);
    count_visible(block, key, keys);
    make_scores(block, s.q, s.transposed_keys, key, keys, s.scores);
    if (a_.softcap > 0) cap_scores(score_block(block, keys, s.scores), a_.softcap, nullptr);
    add_bias(block, key, s.scores);
    hide(block, key, s.scores);
    softmax_block(score_block(block, keys, s.scores), s.max, s.sum, s.correction);
    drop(block, key, s.scores);
    if (key > begin) scale_rows(s.out, s.correction, block.rows, width_);
    apply_scores(block, s.scores, s.values + key * width_, keys, /*add=*/key > begin, s.out);
  }
}

void ForwardTask::write(const QueryBlock& block, const HeadsView& out, ForwardBuffers& s) const {
  for_rows(block, out, [&](void* to, int64_t r) {
    float* row = s.out + r * width_;
    scaled_copy(row, 1.0f / s.sum[r], begin_row(a_.type, to, row), a_.channels);
    finish_row(a_.type, row, a_.channels, to);
    if (a_.lse != nullptr) *lse_at(block, r) = s.max[r] + std::log(s.sum[r]);
  });
}

void ForwardTask::run(const HeadsView& out) {
  ForwardBuffers s{.transposed_keys = transpose_heads(load_heads(a_.k)),
                   .values = load_heads(a_.v),
                   .q = scratch_.take(max_rows_ * width_),
                   .out = scratch_.take(max_rows_ * width_),
                   .scores = scratch_.take(max_rows_ * score_stride_),
                   .max = scratch_.take(max_rows_),
                   .sum = scratch_.take(max_rows_),
                   .correction = scratch_.take(max_rows_)};
  for (int64_t begin = 0; begin < task_.queries; begin += block_queries_) {
    const QueryBlock block = query_block(begin);
    copy_rows(block, a_.q, a_.scale, s.q);
    attend(block, s);
    write(block, out, s);
  }
}

struct BackwardBuffers {
  float *keys, *transposed_keys, *transposed_values;
  float *dk, *dv;        // [keys, width_], sums over the blocks
  float *q, *dout, *dq;  // [rows, width_]
  float *scores, *grad;
  float* slopes;       // of capped scores
  float *lse, *delta;  // of each row; delta = sum(p * dp)
};

class BackwardTask : AttentionTask {
 public:
  using AttentionTask::AttentionTask;
  void run(const AttentionGradientViews& g);

 private:
  bool sees_one_block(const QueryBlock& block) const {
    return seen_keys(block) - first_seen_key(block) <= block_keys_;
  }
  void load(const QueryBlock& block, const AttentionGradientViews& g, BackwardBuffers& s) const;
  void differentiate(const QueryBlock& block, BackwardBuffers& s, float* dbias);
};

void BackwardTask::load(const QueryBlock& block, const AttentionGradientViews& g,
                        BackwardBuffers& s) const {
  copy_rows(block, a_.q, a_.scale, s.q);
  copy_rows(block, g.dout, 1.0f, s.dout);
  // dout * out is that sum without a look at all keys. Rows of one block take the sum itself: what
  // rounding puts into all of a row's dp cancels in it, and its ds add up to nothing, as they must
  // where keys are much alike.
  if (!sees_one_block(block)) {
    dot_rows(head_rows(block, g.out, /*scratch=*/s.dq), s.dout, width_, s.delta);
  }
  for (int64_t r = 0; r < block.rows; ++r) s.lse[r] = *lse_at(block, r);
}

// With scaled queries q: s = q k^T, p = exp(s - lse), dv += p^T dout, dp = dout v^T,
// ds = p (dp - delta), dk += ds^T q, dq = scale * ds k. With a bias it is part of s, and its
// gradient is ds. With dropout p and dp pass through the mask, but for the p in ds. Where scores
// are capped, the products get ds times the cap's slope.
void BackwardTask::differentiate(const QueryBlock& block, BackwardBuffers& s, float* dbias) {
  const int64_t begin = first_seen_key(block), end = seen_keys(block);
  const float* delta = sees_one_block(block) ? nullptr : s.delta;
  for (int64_t key = begin; key < end; key += block_keys_) {
    const int64_t keys = std::min(block_keys_, end - key);
    count_visible(block, key, keys);
    make_scores(block, s.q, s.transposed_keys, key, keys, s.scores);
    const ScoreBlock scores = score_block(block, keys, s.scores);
    if (a_.softcap > 0) cap_scores(scores, a_.softcap, s.slopes);
    add_bias(block, key, s.scores);
    hide(block, key, s.scores);
    make_scores(block, s.dout, s.transposed_values, key, keys, s.grad);
    drop(block, key, s.grad);
    softmax_backward_block(scores, s.lse, delta, s.grad);
    add_bias_gradient(block, key, s.grad, dbias);
    if (a_.softcap > 0) multiply_scores(scores, s.slopes, s.grad);
    drop(block, key, s.scores);
    apply_transposed_scores(block, s.scores, s.dout, keys, s.dv + key * width_);
    apply_transposed_scores(block, s.grad, s.q, keys, s.dk + key * width_);
    apply_scores(block, s.grad, s.keys + key * width_, keys, /*add=*/key > begin, s.dq);
  }
}

void BackwardTask::run(const AttentionGradientViews& g) {
  BackwardBuffers s{.keys = load_heads(a_.k),
                    .transposed_keys = nullptr,
                    .transposed_values = transpose_heads(load_heads(a_.v)),
                    .dk = scratch_.take(task_.keys * width_),
                    .dv = scratch_.take(task_.keys * width_),
                    .q = scratch_.take(max_rows_ * width_),
                    .dout = scratch_.take(max_rows_ * width_),
                    .dq = scratch_.take(max_rows_ * width_),
                    .scores = scratch_.take(max_rows_ * score_stride_),
                    .grad = scratch_.take(max_rows_ * score_stride_),
                    .slopes = scratch_.take(a_.softcap > 0 ? max_rows_ * score_stride_ : 0),
                    .lse = scratch_.take(max_rows_),
                    .delta = scratch_.take(max_rows_)};
  s.transposed_keys = transpose_heads(s.keys);
  std::fill_n(s.dk, task_.keys * width_, 0.0f);
  std::fill_n(s.dv, task_.keys * width_, 0.0f);
  float* dbias =
      g.dbias == nullptr ? nullptr : g.dbias + task_.document * a_.q.heads * a_.bias_span;
  for (int64_t begin = 0; begin < task_.queries; begin += block_queries_) {
    const QueryBlock block = query_block(begin);
    load(block, g, s);
    differentiate(block, s, dbias);
    for_rows(block, g.dq, [&](void* to, int64_t r) {
      float* row = s.dq + r * width_;
      scaled_copy(row, a_.scale, begin_row(a_.type, to, row), a_.channels);
      finish_row(a_.type, row, a_.channels, to);
    });
  }
  write_heads(s.dk, g.dk);
  write_heads(s.dv, g.dv);
}

// Runs a Task with `arguments` for each document and kv head.
template <typename Task, typename Arguments>
void run_tasks(const AttentionArguments& a, const Arguments& arguments) {
  const auto documents = static_cast<int64_t>(a.offsets.size()) - 1;
  at::parallel_for(0, documents * a.k.heads, 1, [&](int64_t begin, int64_t end) {
    AttentionScratch scratch;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t d = i / a.k.heads;
      TaskRange range{.first_query = a.offsets[d],
                      .first_key = a.offsets[d],
                      .queries = a.offsets[d + 1] - a.offsets[d] - a.key_lead,
                      .keys = a.offsets[d + 1] - a.offsets[d],
                      .kv_head = i % a.k.heads,
                      .document = d};
      if (!a.key_offsets.empty()) {
        range.first_key = a.key_offsets[d];
        range.queries = range.keys;
        range.keys = a.key_offsets[d + 1] - range.first_key;
      }
      if (range.keys == 0) continue;
      scratch.start_task();
      Task(a, range, scratch).run(arguments);
    }
  });
}

}  // namespace

void attention(const AttentionArguments& a, HeadsView out) { run_tasks<ForwardTask>(a, out); }

void attention_backward(const AttentionArguments& a, const AttentionGradientViews& g) {
  run_tasks<BackwardTask>(a, g);
}

}  // namespace strata::ops::cpu
