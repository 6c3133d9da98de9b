// Where a task's rows, scores and biases stand (attention_task.h). Never: arithmetic of its own.
#include "strata/ops/attention/attention_task.h"

#include <algorithm>
#include <limits>

#include "strata/ops/dropout_keys.h"

namespace strata::ops::cpu {

AttentionTask::AttentionTask(const AttentionArguments& a, const TaskRange& range,
                             AttentionScratch& scratch, const AttentionBlocks& blocks)
    : a_(a),
      scratch_(scratch),
      task_(range),
      width_(padded_columns(a.channels)),
      group_(a.q.heads / a.k.heads),
      block_queries_(std::max<int64_t>(1, blocks.rows / group_)),
      max_rows_(std::min(block_queries_, range.queries) * group_),
      block_keys_(std::min(blocks.keys, round_up(range.keys, blocks.key_multiple))),
      score_stride_(block_keys_ + kColumnMultiple),
      visible_(new int64_t[static_cast<size_t>(max_rows_)]) {}

QueryBlock AttentionTask::query_block(int64_t begin) const {
  const int64_t count = std::min(block_queries_, task_.queries - begin);
  return {begin, count, count * group_};
}

void AttentionTask::count_visible(const QueryBlock& block, int64_t key, int64_t keys) {
  for (int64_t r = 0; r < block.rows; ++r) {
    visible_[r] = std::clamp<int64_t>(last_seen_key(block.begin + r / group_) - key + 1, 0, keys);
  }
}

int64_t AttentionTask::last_seen_key(int64_t query) const {
  const int64_t own = query + a_.key_lead;
  if (a_.causal) return std::min(own, task_.keys - 1);
  return a_.window == 0 ? task_.keys - 1 : std::min(own + a_.window, task_.keys) - 1;
}

int64_t AttentionTask::seen_keys(const QueryBlock& block) const {
  return last_seen_key(block.begin + block.count - 1) + 1;
}

int64_t AttentionTask::first_seen_key(const QueryBlock& block) const {
  if (a_.window == 0) return 0;
  const int64_t first = std::max<int64_t>(0, block.begin + a_.key_lead + 1 - a_.window);
  return first / kAlignedKeys * kAlignedKeys;
}

void AttentionTask::hide(const QueryBlock& block, int64_t key, float* scores) const {
  if (a_.window == 0) return;
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t first = block.begin + r / group_ + a_.key_lead + 1 - a_.window;
    const int64_t hidden = std::clamp<int64_t>(first - key, 0, visible_[r]);
    std::fill_n(scores + r * score_stride_, hidden, -std::numeric_limits<float>::infinity());
  }
}

float* AttentionTask::lse_at(const QueryBlock& block, int64_t row) const {
  return a_.lse + (task_.kv_head * group_ + row % group_) * a_.tokens + task_.first_query +
         block.begin + row / group_;
}

int64_t AttentionTask::bias_place(const QueryBlock& block, int64_t row, int64_t key) const {
  const int64_t query = block.begin + row / group_ + a_.key_lead;
  return query_head(row) * a_.bias_span + a_.bias_origin + key - query;
}

void AttentionTask::add_bias(const QueryBlock& block, int64_t key, float* scores) const {
  if (a_.bias == nullptr) return;
  for (int64_t r = 0; r < block.rows; ++r) {
    add_row(a_.bias + bias_place(block, r, key), scores + r * score_stride_, visible_[r]);
  }
}

void AttentionTask::add_bias_gradient(const QueryBlock& block, int64_t key, const float* grad,
                                      float* dbias) const {
  if (dbias == nullptr) return;
  for (int64_t r = 0; r < block.rows; ++r) {
    add_row(grad + r * score_stride_, dbias + bias_place(block, r, key), visible_[r]);
  }
}

void AttentionTask::drop(const QueryBlock& block, int64_t key, float* scores) const {
  if (a_.dropout == 0) return;
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t token = task_.first_query + block.begin + r / group_;
    const uint64_t of_head = head_key(a_.dropout_key, query_head(r));
    float* row = scores + r * score_stride_;
    DropoutRow(a_.dropout, of_head, a_.token_keys[token]).apply(row, row, visible_[r], key);
  }
}

ScoreBlock AttentionTask::score_block(const QueryBlock& block, int64_t keys, float* scores) const {
  return {scores, block.rows, padded_columns(keys), score_stride_, visible_.get()};
}

}  // namespace strata::ops::cpu
