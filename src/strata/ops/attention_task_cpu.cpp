// Where a task's rows are read and written, and how its products are called (attention_task.h).
// Never: arithmetic of its own.
#include "strata/ops/attention_task.h"

#include <algorithm>

#include "strata/ops/block_product.h"
#include "strata/ops/dropout_keys.h"

namespace strata::ops::cpu {

namespace {

constexpr int64_t kBlockRows = 96;   // rows (query x head of the group) of a block of scores
constexpr int64_t kBlockKeys = 512;  // its columns, at most

}  // namespace

AttentionTask::AttentionTask(const AttentionArguments& a, const TaskRange& range,
                             AttentionScratch& scratch)
    : a_(a),
      scratch_(scratch),
      task_(range),
      width_(padded_columns(a.channels)),
      group_(a.q.heads / a.k.heads),
      block_queries_(std::max<int64_t>(1, kBlockRows / group_)),
      max_rows_(std::min(block_queries_, range.queries) * group_),
      block_keys_(std::min(kBlockKeys, padded_columns(range.keys))),
      score_stride_(block_keys_ + kColumnMultiple),
      key_stride_(padded_columns(range.keys) + kColumnMultiple),
      visible_(new int64_t[static_cast<size_t>(max_rows_)]) {}

float* AttentionTask::load_heads(const HeadsView& view) const {
  float* copy = scratch_.take(task_.keys * width_);
  for (int64_t j = 0; j < task_.keys; ++j) {
    float* row = copy + j * width_;
    copy_row(a_.type, head_address(a_.type, view, task_.first_key + j, task_.kv_head), a_.channels,
             row);
    std::fill(row + a_.channels, row + width_, 0.0f);
  }
  return copy;
}

float* AttentionTask::transpose_heads(const float* heads) const {
  float* transposed = scratch_.take(a_.channels * key_stride_);
  transpose_block(heads, width_, task_.keys, a_.channels, transposed, key_stride_);
  for (int64_t c = 0; c < a_.channels; ++c) {
    std::fill(transposed + c * key_stride_ + task_.keys, transposed + (c + 1) * key_stride_, 0.0f);
  }
  return transposed;
}

void AttentionTask::write_heads(const float* from, const HeadsView& to) const {
  for (int64_t j = 0; j < task_.keys; ++j) {
    void* row = head_address(a_.type, to, task_.first_key + j, task_.kv_head);
    if (a_.type == Element::kFloat) {
      std::copy_n(from + j * width_, a_.channels, static_cast<float*>(row));
    } else {
      narrow(from + j * width_, static_cast<uint16_t*>(row), a_.channels);
    }
  }
}

QueryBlock AttentionTask::query_block(int64_t begin) const {
  const int64_t count = std::min(block_queries_, task_.queries - begin);
  return {begin, count, count * group_};
}

void AttentionTask::copy_rows(const QueryBlock& block, const HeadsView& view, float factor,
                              float* to) const {
  for_rows(block, view, [&](const void* from, int64_t r) {
    float* row = to + r * width_;
    const float* source = read_row(a_.type, from, a_.channels, row);
    if (factor != 1.0f || source != row) scaled_copy(source, factor, row, a_.channels);
    std::fill(row + a_.channels, row + width_, 0.0f);
  });
}

void AttentionTask::count_visible(const QueryBlock& block, int64_t key, int64_t keys) {
  if (!a_.causal) return void(std::fill_n(visible_.get(), block.rows, keys));
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t last = block.begin + r / group_ + a_.key_lead;
    visible_[r] = std::clamp<int64_t>(last - key + 1, 0, keys);
  }
}

int64_t AttentionTask::seen_keys(const QueryBlock& block) const {
  if (!a_.causal) return task_.keys;
  return std::min(task_.keys, block.begin + block.count + a_.key_lead);
}

float* AttentionTask::lse_at(const QueryBlock& block, int64_t row) const {
  return a_.lse + (task_.kv_head * group_ + row % group_) * a_.tokens + task_.first_query +
         block.begin + row / group_;
}

int64_t AttentionTask::bias_place(const QueryBlock& block, int64_t row, int64_t key) const {
  const int64_t query = block.begin + row / group_ + a_.key_lead;
  return query_head(row) * a_.bias_span + a_.bias_origin + key - query;
}

void AttentionTask::add_bias(const QueryBlock& block, int64_t key, int64_t keys,
                             float* scores) const {
  if (a_.bias == nullptr) return;
  for (int64_t r = 0; r < block.rows; ++r) {
    add_row(a_.bias + bias_place(block, r, key), scores + r * score_stride_, keys);
  }
}

void AttentionTask::add_bias_gradient(const QueryBlock& block, int64_t key, int64_t keys,
                                      const float* grad, float* dbias) const {
  if (dbias == nullptr) return;
  for (int64_t r = 0; r < block.rows; ++r) {
    add_row(grad + r * score_stride_, dbias + bias_place(block, r, key), keys);
  }
}

void AttentionTask::drop(const QueryBlock& block, int64_t key, int64_t keys, float* scores) const {
  if (a_.dropout == 0) return;
  for (int64_t r = 0; r < block.rows; ++r) {
    const int64_t token = task_.first_query + block.begin + r / group_;
    const uint64_t of_head = head_key(a_.dropout_key, query_head(r));
    float* row = scores + r * score_stride_;
    DropoutRow(a_.dropout, of_head, a_.token_keys[token]).apply(row, row, keys, key);
  }
}

void AttentionTask::make_scores(int64_t rows, const float* rows_by_channel,
                                const float* transposed_heads, int64_t key, int64_t keys,
                                float* scores) const {
  block_product({.rows = rows,
                 .columns = padded_columns(keys),
                 .inner = a_.channels,
                 .a = rows_by_channel,
                 .a_row_stride = width_,
                 .a_inner_stride = 1,
                 .b = transposed_heads + key,
                 .b_stride = key_stride_,
                 .c = scores,
                 .c_stride = score_stride_});
}

void AttentionTask::apply_scores(int64_t rows, const float* scores, const float* heads,
                                 int64_t keys, bool add, float* out) const {
  block_product({.rows = rows,
                 .columns = width_,
                 .inner = keys,
                 .a = scores,
                 .a_row_stride = score_stride_,
                 .a_inner_stride = 1,
                 .b = heads,
                 .b_stride = width_,
                 .c = out,
                 .c_stride = width_,
                 .add = add});
}

void AttentionTask::apply_transposed_scores(int64_t keys, const float* scores,
                                            const float* rows_by_channel, int64_t rows,
                                            float* out) const {
  block_product({.rows = keys,
                 .columns = width_,
                 .inner = rows,
                 .a = scores,
                 .a_row_stride = 1,
                 .a_inner_stride = score_stride_,
                 .b = rows_by_channel,
                 .b_stride = width_,
                 .c = out,
                 .c_stride = width_,
                 .add = true});
}

ScoreBlock AttentionTask::score_block(const QueryBlock& block, int64_t keys, float* scores) const {
  return {scores, block.rows, padded_columns(keys), score_stride_, visible_.get()};
}

}  // namespace strata::ops::cpu
