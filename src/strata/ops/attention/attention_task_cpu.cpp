// Where a task's rows are read and written, and how its products are called (attention_task.h).
// Never: arithmetic of its own.
#include "strata/ops/attention/attention_task.h"

#include <algorithm>
#include <limits>

#include "strata/ops/dropout_keys.h"
#include "strata/ops/matmul/block_product.h"

namespace strata::ops::cpu {

namespace {

constexpr int64_t kBlockRows = 96;   // rows (query x head of the group) of a block of scores
constexpr int64_t kBlockKeys = 256;  // its columns, at most

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
  float* transposed = scratch_.take(a_.channels * padded_columns(task_.keys));
  for (int64_t key = 0; key < task_.keys; key += kPanelKeys) {
    const int64_t keys = std::min(kPanelKeys, task_.keys - key);
    const int64_t width = panel_width(key);
    float* panel = transposed + key * a_.channels;
    transpose_block(heads + key * width_, width_, keys, a_.channels, panel, width);
    for (int64_t c = 0; c < a_.channels; ++c) {
      std::fill(panel + c * width + keys, panel + (c + 1) * width, 0.0f);
    }
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

HeadRows AttentionTask::head_rows(const QueryBlock& block, const HeadsView& view,
                                  float* scratch) const {
  const int64_t head = task_.kv_head * group_;
  const void* first = head_address(a_.type, view, task_.first_query + block.begin, head);
  HeadRows rows{static_cast<const float*>(first),
                block.count,
                group_,
                a_.channels,
                view.token_stride,
                view.head_stride};
  if (a_.type == Element::kFloat) return rows;
  for_rows(block, view, [&](const void* from, int64_t r) {
    copy_row(a_.type, from, a_.channels, scratch + r * width_);
  });
  rows.data = scratch;
  rows.token_stride = group_ * width_;
  rows.head_stride = width_;
  return rows;
}

void AttentionTask::copy_rows(const QueryBlock& block, const HeadsView& view, float factor,
                              float* to) const {
  scaled_rows(head_rows(block, view, to), factor, to, width_);
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
  return first / kPanelKeys * kPanelKeys;
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

void AttentionTask::make_scores(const QueryBlock& block, const float* rows_by_channel,
                                const float* transposed_heads, int64_t key, int64_t keys,
                                float* scores) const {
  for (int64_t panel = 0; panel < keys; panel += kPanelKeys) {
    const int64_t panel_keys = std::min(kPanelKeys, keys - panel);
    for_row_parts(block, panel, panel_keys, [&](int64_t row, int64_t rows, int64_t seen) {
      block_product({.rows = rows,
                     .columns = padded_columns(seen),
                     .inner = a_.channels,
                     .a = rows_by_channel + row * width_,
                     .a_row_stride = width_,
                     .a_inner_stride = 1,
                     .b = transposed_heads + (key + panel) * a_.channels,
                     .b_stride = panel_width(key + panel),
                     .c = scores + row * score_stride_ + panel,
                     .c_stride = score_stride_});
    });
  }
}

void AttentionTask::apply_scores(const QueryBlock& block, const float* scores, const float* heads,
                                 int64_t keys, bool add, float* out) const {
  for_row_parts(block, 0, keys, [&](int64_t row, int64_t rows, int64_t seen) {
    block_product({.rows = rows,
                   .columns = width_,
                   .inner = seen,
                   .a = scores + row * score_stride_,
                   .a_row_stride = score_stride_,
                   .a_inner_stride = 1,
                   .b = heads,
                   .b_stride = width_,
                   .c = out + row * width_,
                   .c_stride = width_,
                   .add = add});
  });
}

void AttentionTask::apply_transposed_scores(const QueryBlock& block, const float* scores,
                                            const float* rows_by_channel, int64_t keys,
                                            float* out) const {
  int64_t row = 0;  // the first that sees the key
  for (int64_t key = 0, count = 0; key < keys; key += count) {
    while (row < block.rows && visible_[row] <= key) ++row;
    const int64_t parts = std::max<int64_t>(1, (visible_[row] - key) / kPartRows);
    count = visible_[row] < keys ? std::min(keys - key, parts * kPartRows) : keys - key;
    block_product({.rows = count,
                   .columns = width_,
                   .inner = block.rows - row,
                   .a = scores + row * score_stride_ + key,
                   .a_row_stride = 1,
                   .a_inner_stride = score_stride_,
                   .b = rows_by_channel + row * width_,
                   .b_stride = width_,
                   .c = out + key * width_,
                   .c_stride = width_,
                   .add = true});
  }
}

ScoreBlock AttentionTask::score_block(const QueryBlock& block, int64_t keys, float* scores) const {
  return {scores, block.rows, padded_columns(keys), score_stride_, visible_.get()};
}

}  // namespace strata::ops::cpu
