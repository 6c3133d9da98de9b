// Blocked attention on the CPU in fp32, causal or not. A task is one document and one kv head; the
// query heads of the kv head are stacked as rows, so that its keys are read once for all of them.
// Never: checks.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "strata/ops/block_product.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

constexpr int64_t kBlockRows = 96;   // rows (query x head of the group) of a block of scores
constexpr int64_t kBlockKeys = 512;  // its columns, at most
constexpr uint64_t kHeadStep = 0xD1B54A32D192ED03u;  // odd: between the dropout keys of heads

// What one block of scores looks like to the kernels on its rows. The kernels work on whole
// vectors: columns from `visible` on are masked, so what stands there does not matter.
struct ScoreBlock {
  float* scores;
  int64_t rows, columns, stride;  // columns: a multiple of kColumnMultiple
  const int64_t* visible;         // [rows], how many of the columns the row sees
};

// Masks the columns from n on up to a whole vector with -inf and zeroes the rest. Returns the
// number of columns up to there.
STRATA_INLINE int64_t mask_row(float* row, int64_t n, int64_t columns) {
  const int64_t whole = padded_columns(n);
  for (int64_t j = n; j < whole; ++j) row[j] = -std::numeric_limits<float>::infinity();
  for (int64_t j = whole; j < columns; ++j) row[j] = 0;
  return whole;
}

// Online softmax. Turns scores into exp(score - max), 0 where masked; carries the running maximum
// and sum of each row and says in `correction` by what earlier results of the row are multiplied.
STRATA_VECTORIZED void softmax_block(const ScoreBlock& block, float* max, float* sum,
                                     float* correction) {
  for (int64_t r = 0; r < block.rows; ++r) {
    float* row = block.scores + r * block.stride;
    const int64_t n = mask_row(row, block.visible[r], block.columns);
    float row_max = max[r];
#pragma omp simd reduction(max : row_max)
    for (int64_t j = 0; j < n; ++j) row_max = row[j] > row_max ? row[j] : row_max;
    float row_sum = 0;
#pragma omp simd reduction(+ : row_sum)
    for (int64_t j = 0; j < n; ++j) {
      const float e = exp_vectorizable(row[j] - row_max);
      row[j] = e;
      row_sum += e;
    }
    // -inf before the first block: a correction of 0.
    correction[r] = n == 0 ? 1.0f : exp_vectorizable(max[r] - row_max);
    sum[r] = sum[r] * correction[r] + row_sum;
    max[r] = row_max;
  }
}

STRATA_VECTORIZED void scale_rows(float* x, const float* factor, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < columns; ++j) x[r * columns + j] *= factor[r];
  }
}

// Probabilities from scores and the forward's lse, 0 where masked; then
// grad = probability * (grad - delta), the gradient of the scores.
STRATA_VECTORIZED void softmax_backward_block(const ScoreBlock& block, const float* lse,
                                              const float* delta, float* grad) {
  for (int64_t r = 0; r < block.rows; ++r) {
    float* __restrict row = block.scores + r * block.stride;
    float* __restrict grad_row = grad + r * block.stride;
    const int64_t n = mask_row(row, block.visible[r], block.columns);
    const float row_lse = lse[r];
    const float row_delta = delta[r];
    for (int64_t j = 0; j < n; ++j) {
      const float p = exp_vectorizable(row[j] - row_lse);
      row[j] = p;
      grad_row[j] = p * (grad_row[j] - row_delta);
    }
    for (int64_t j = n; j < block.columns; ++j) grad_row[j] = 0;
  }
}

STRATA_VECTORIZED float dot_row(const float* a, const float* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

STRATA_VECTORIZED void add_row(const float* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}

STRATA_VECTORIZED void scaled_copy(const float* from, float factor, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i] * factor;
}

// Uninitialised buffers that the tasks of a thread use one after the other: fresh pages for every
// task would cost as much as a fifth of its time.
class Scratch {
 public:
  // The next buffer, of at least n elements; the same task order finds the same buffers again.
  float* take(int64_t n) {
    if (next_ == buffers_.size()) buffers_.emplace_back();
    Buffer& buffer = buffers_[next_++];
    if (buffer.size < n) {
      buffer.data.reset(new float[static_cast<size_t>(n)]);
      buffer.size = n;
    }
    return buffer.data.get();
  }
  void start_task() { next_ = 0; }

 private:
  struct Buffer {
    std::unique_ptr<float[]> data;
    int64_t size = 0;
  };
  std::vector<Buffer> buffers_;
  size_t next_ = 0;
};

const void* address(Element type, const HeadsView& view, int64_t token, int64_t head) {
  return at_index(type, static_cast<const void*>(view.data),
                  token * view.token_stride + head * view.head_stride);
}

void* mutable_address(Element type, const HeadsView& view, int64_t token, int64_t head) {
  return at_index(type, view.data, token * view.token_stride + head * view.head_stride);
}

// One document and one kv head.
struct Task {
  int64_t first_query, first_key;  // token numbers
  int64_t queries, keys;
  int64_t kv_head;
  int64_t document;
};

// A block of queries of a task: rows are (query, head of the group), query-major.
struct QueryBlock {
  int64_t begin, count;  // queries, in the document
  int64_t rows;
};

class TaskRunner {
 public:
  TaskRunner(const AttentionArguments& a, const Task& task, Scratch& scratch)
      : a_(a),
        scratch_(scratch),
        task_(task),
        width_(padded_columns(a.channels)),
        group_(a.q.heads / a.k.heads),
        block_queries_(std::max<int64_t>(1, kBlockRows / group_)),
        max_rows_(std::min(block_queries_, task.queries) * group_),
        block_keys_(std::min(kBlockKeys, padded_columns(task.keys))),
        score_stride_(block_keys_ + kColumnMultiple),
        key_stride_(padded_columns(task.keys) + kColumnMultiple),
        visible_(new int64_t[static_cast<size_t>(max_rows_)]) {}

  void forward(const HeadsView& out);
  void backward(const AttentionGradientViews& g);

 private:
  // The task's keys or values in fp32, [keys, width_] with zeros in the padding. A strided tensor
  // is copied too: rows some KiB apart would push each other out of the cache.
  float* load_heads(const HeadsView& view) const;
  // The transpose of that, [channels, key_stride_], zeros in the padding.
  float* transpose_heads(const float* heads) const;
  void write_heads(const float* from, const HeadsView& to) const;

  QueryBlock query_block(int64_t begin) const {
    const int64_t count = std::min(block_queries_, task_.queries - begin);
    return {begin, count, count * group_};
  }

  // Calls f(address of the row in `view`, row) for each row of a block.
  template <typename F>
  void for_rows(const QueryBlock& block, const HeadsView& view, F f) const {
    for (int64_t i = 0; i < block.count; ++i) {
      for (int64_t h = 0; h < group_; ++h) {
        f(mutable_address(a_.type, view, task_.first_query + block.begin + i,
                          task_.kv_head * group_ + h),
          i * group_ + h);
      }
    }
  }

  // Rows of a block as fp32 [rows, width_], multiplied by `factor`.
  void copy_rows(const QueryBlock& block, const HeadsView& view, float factor, float* to) const {
    for_rows(block, view, [&](const void* from, int64_t r) {
      float* row = to + r * width_;
      const float* source = read_row(a_.type, from, a_.channels, row);
      if (factor != 1.0f || source != row) scaled_copy(source, factor, row, a_.channels);
      std::fill(row + a_.channels, row + width_, 0.0f);
    });
  }

  // How many of the keys [key, key + keys) each row of the block sees.
  void count_visible(const QueryBlock& block, int64_t key, int64_t keys) {
    if (!a_.causal) return void(std::fill_n(visible_.get(), block.rows, keys));
    for (int64_t r = 0; r < block.rows; ++r) {
      const int64_t last = block.begin + r / group_ + a_.key_lead;
      visible_[r] = std::clamp<int64_t>(last - key + 1, 0, keys);
    }
  }

  // Keys that the block's last query sees.
  int64_t seen_keys(const QueryBlock& block) const {
    if (!a_.causal) return task_.keys;
    return std::min(task_.keys, block.begin + block.count + a_.key_lead);
  }

  float* lse_at(const QueryBlock& block, int64_t row) const {
    return a_.lse + (task_.kv_head * group_ + row % group_) * a_.tokens + task_.first_query +
           block.begin + row / group_;
  }

  int64_t query_head(int64_t row) const { return task_.kv_head * group_ + row % group_; }

  // Where the bias of the row and the key stands in [Hq, bias_span]; those of the next keys follow.
  int64_t bias_place(const QueryBlock& block, int64_t row, int64_t key) const {
    const int64_t query = block.begin + row / group_ + a_.key_lead;
    return query_head(row) * a_.bias_span + a_.bias_origin + key - query;
  }

  void add_bias(const QueryBlock& block, int64_t key, int64_t keys, float* scores) const {
    if (a_.bias == nullptr) return;
    for (int64_t r = 0; r < block.rows; ++r) {
      add_row(a_.bias + bias_place(block, r, key), scores + r * score_stride_, keys);
    }
  }

  // `dbias`: [Hq, bias_span] of the document.
  void add_bias_gradient(const QueryBlock& block, int64_t key, int64_t keys, const float* grad,
                         float* dbias) const {
    if (dbias == nullptr) return;
    for (int64_t r = 0; r < block.rows; ++r) {
      add_row(grad + r * score_stride_, dbias + bias_place(block, r, key), keys);
    }
  }

  // Zeroes and scales what dropout does to the probabilities, or to their gradients.
  void drop(const QueryBlock& block, int64_t key, int64_t keys, float* scores) const {
    if (a_.dropout == 0) return;
    for (int64_t r = 0; r < block.rows; ++r) {
      const int64_t token = task_.first_query + block.begin + r / group_;
      // Heads differ in the key, so that one token's masks are unrelated.
      const uint64_t head_key = a_.dropout_key + static_cast<uint64_t>(query_head(r)) * kHeadStep;
      float* row = scores + r * score_stride_;
      DropoutRow(a_.dropout, head_key, a_.token_keys[token]).apply(row, row, keys, key);
    }
  }

  // scores [rows, keys] = rows_by_channel [rows, width_] x transposed_heads.
  void make_scores(int64_t rows, const float* rows_by_channel, const float* transposed_heads,
                   int64_t key, int64_t keys, float* scores) const {
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

  // out [rows, width_] (+)= scores [rows, keys] x heads [keys, width_].
  void apply_scores(int64_t rows, const float* scores, const float* heads, int64_t keys, bool add,
                    float* out) const {
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

  // out [keys, width_] += transpose of scores [rows, keys] x rows_by_channel [rows, width_].
  void apply_transposed_scores(int64_t keys, const float* scores, const float* rows_by_channel,
                               int64_t rows, float* out) const {
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

  ScoreBlock score_block(const QueryBlock& block, int64_t keys, float* scores) const {
    return {scores, block.rows, padded_columns(keys), score_stride_, visible_.get()};
  }

  struct ForwardScratch;
  struct BackwardScratch;
  void forward_block(const QueryBlock& block, ForwardScratch& s);
  void write_block(const QueryBlock& block, const HeadsView& out, ForwardScratch& s) const;
  void load_block(const QueryBlock& block, const AttentionGradientViews& g,
                  BackwardScratch& s) const;
  void backward_block(const QueryBlock& block, BackwardScratch& s, float* dbias);

  const AttentionArguments& a_;
  Scratch& scratch_;
  const Task task_;
  const int64_t width_;  // channels and their padding
  const int64_t group_;  // query heads of the kv head
  const int64_t block_queries_;
  const int64_t max_rows_;
  const int64_t block_keys_;
  const int64_t score_stride_;  // not a power of two, so that rows spread over the cache
  const int64_t key_stride_;
  const std::unique_ptr<int64_t[]> visible_;
};

float* TaskRunner::load_heads(const HeadsView& view) const {
  float* copy = scratch_.take(task_.keys * width_);
  for (int64_t j = 0; j < task_.keys; ++j) {
    float* row = copy + j * width_;
    copy_row(a_.type, address(a_.type, view, task_.first_key + j, task_.kv_head), a_.channels, row);
    std::fill(row + a_.channels, row + width_, 0.0f);
  }
  return copy;
}

float* TaskRunner::transpose_heads(const float* heads) const {
  float* transposed = scratch_.take(a_.channels * key_stride_);
  transpose_block(heads, width_, task_.keys, a_.channels, transposed, key_stride_);
  for (int64_t c = 0; c < a_.channels; ++c) {
    std::fill(transposed + c * key_stride_ + task_.keys, transposed + (c + 1) * key_stride_, 0.0f);
  }
  return transposed;
}

void TaskRunner::write_heads(const float* from, const HeadsView& to) const {
  for (int64_t j = 0; j < task_.keys; ++j) {
    void* row = mutable_address(a_.type, to, task_.first_key + j, task_.kv_head);
    if (a_.type == Element::kFloat) {
      std::copy_n(from + j * width_, a_.channels, static_cast<float*>(row));
    } else {
      narrow(from + j * width_, static_cast<uint16_t*>(row), a_.channels);
    }
  }
}

struct TaskRunner::ForwardScratch {
  float *transposed_keys, *values;
  float *q, *out, *scores;
  float *max, *sum, *correction;  // of each row
};

void TaskRunner::forward_block(const QueryBlock& block, ForwardScratch& s) {
  std::fill_n(s.max, block.rows, -std::numeric_limits<float>::infinity());
  std::fill_n(s.sum, block.rows, 0.0f);
  const int64_t end = seen_keys(block);
  for (int64_t key = 0; key < end; key += block_keys_) {
    const int64_t keys = std::min(block_keys_, end - key);
    make_scores(block.rows, s.q, s.transposed_keys, key, keys, s.scores);
    add_bias(block, key, keys, s.scores);
    count_visible(block, key, keys);
    softmax_block(score_block(block, keys, s.scores), s.max, s.sum, s.correction);
    drop(block, key, keys, s.scores);
    if (key > 0) scale_rows(s.out, s.correction, block.rows, width_);
    apply_scores(block.rows, s.scores, s.values + key * width_, keys,
                 /*add=*/key > 0, s.out);
  }
}

void TaskRunner::write_block(const QueryBlock& block, const HeadsView& out,
                             ForwardScratch& s) const {
  for_rows(block, out, [&](void* to, int64_t r) {
    float* row = s.out + r * width_;
    scaled_copy(row, 1.0f / s.sum[r], begin_row(a_.type, to, row), a_.channels);
    finish_row(a_.type, row, a_.channels, to);
    if (a_.lse != nullptr) *lse_at(block, r) = s.max[r] + std::log(s.sum[r]);
  });
}

void TaskRunner::forward(const HeadsView& out) {
  ForwardScratch s{.transposed_keys = transpose_heads(load_heads(a_.k)),
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
    forward_block(block, s);
    write_block(block, out, s);
  }
}

struct TaskRunner::BackwardScratch {
  float *keys, *transposed_keys, *transposed_values;
  float *dk, *dv;        // [keys, width_], sums over the blocks
  float *q, *dout, *dq;  // [rows, width_]
  float *scores, *grad;
  float *lse, *delta;  // of each row; delta = sum(dout * out)
};

void TaskRunner::load_block(const QueryBlock& block, const AttentionGradientViews& g,
                            BackwardScratch& s) const {
  copy_rows(block, a_.q, a_.scale, s.q);
  copy_rows(block, g.dout, 1.0f, s.dout);
  copy_rows(block, g.out, 1.0f, s.dq);  // only until delta is known
  for (int64_t r = 0; r < block.rows; ++r) {
    s.lse[r] = *lse_at(block, r);
    s.delta[r] = dot_row(s.dout + r * width_, s.dq + r * width_, a_.channels);
  }
}

// With scaled queries q: s = q k^T, p = exp(s - lse), dv += p^T dout, dp = dout v^T,
// ds = p (dp - delta), dk += ds^T q, dq = scale * ds k. With a bias it is part of s, and its
// gradient is ds. With dropout p and dp pass through the mask, but for the p in ds.
void TaskRunner::backward_block(const QueryBlock& block, BackwardScratch& s, float* dbias) {
  const int64_t end = seen_keys(block);
  for (int64_t key = 0; key < end; key += block_keys_) {
    const int64_t keys = std::min(block_keys_, end - key);
    make_scores(block.rows, s.q, s.transposed_keys, key, keys, s.scores);
    add_bias(block, key, keys, s.scores);
    make_scores(block.rows, s.dout, s.transposed_values, key, keys, s.grad);
    drop(block, key, keys, s.grad);
    count_visible(block, key, keys);
    softmax_backward_block(score_block(block, keys, s.scores), s.lse, s.delta, s.grad);
    add_bias_gradient(block, key, keys, s.grad, dbias);
    drop(block, key, keys, s.scores);
    apply_transposed_scores(keys, s.scores, s.dout, block.rows, s.dv + key * width_);
    apply_transposed_scores(keys, s.grad, s.q, block.rows, s.dk + key * width_);
    apply_scores(block.rows, s.grad, s.keys + key * width_, keys, /*add=*/key > 0, s.dq);
  }
}

void TaskRunner::backward(const AttentionGradientViews& g) {
  BackwardScratch s{.keys = load_heads(a_.k),
                    .transposed_keys = nullptr,
                    .transposed_values = transpose_heads(load_heads(a_.v)),
                    .dk = scratch_.take(task_.keys * width_),
                    .dv = scratch_.take(task_.keys * width_),
                    .q = scratch_.take(max_rows_ * width_),
                    .dout = scratch_.take(max_rows_ * width_),
                    .dq = scratch_.take(max_rows_ * width_),
                    .scores = scratch_.take(max_rows_ * score_stride_),
                    .grad = scratch_.take(max_rows_ * score_stride_),
                    .lse = scratch_.take(max_rows_),
                    .delta = scratch_.take(max_rows_)};
  s.transposed_keys = transpose_heads(s.keys);
  std::fill_n(s.dk, task_.keys * width_, 0.0f);
  std::fill_n(s.dv, task_.keys * width_, 0.0f);
  float* dbias =
      g.dbias == nullptr ? nullptr : g.dbias + task_.document * a_.q.heads * a_.bias_span;
  for (int64_t begin = 0; begin < task_.queries; begin += block_queries_) {
    const QueryBlock block = query_block(begin);
    load_block(block, g, s);
    backward_block(block, s, dbias);
    for_rows(block, g.dq, [&](void* to, int64_t r) {
      float* row = s.dq + r * width_;
      scaled_copy(row, a_.scale, begin_row(a_.type, to, row), a_.channels);
      finish_row(a_.type, row, a_.channels, to);
    });
  }
  write_heads(s.dk, g.dk);
  write_heads(s.dv, g.dv);
}

// Runs f(runner) for each document and kv head.
template <typename F>
void for_tasks(const AttentionArguments& a, F f) {
  const auto documents = static_cast<int64_t>(a.offsets.size()) - 1;
  at::parallel_for(0, documents * a.k.heads, 1, [&](int64_t begin, int64_t end) {
    Scratch scratch;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t d = i / a.k.heads;
      Task task{.first_query = a.offsets[d],
                .first_key = a.offsets[d],
                .queries = a.offsets[d + 1] - a.offsets[d] - a.key_lead,
                .keys = a.offsets[d + 1] - a.offsets[d],
                .kv_head = i % a.k.heads,
                .document = d};
      if (!a.key_offsets.empty()) {
        task.first_key = a.key_offsets[d];
        task.queries = task.keys;
        task.keys = a.key_offsets[d + 1] - task.first_key;
      }
      if (task.keys == 0) continue;
      scratch.start_task();
      TaskRunner runner(a, task, scratch);
      f(runner);
    }
  });
}

}  // namespace

void attention(const AttentionArguments& a, HeadsView out) {
  for_tasks(a, [&](TaskRunner& runner) { runner.forward(out); });
}

void attention_backward(const AttentionArguments& a, const AttentionGradientViews& g) {
  for_tasks(a, [&](TaskRunner& runner) { runner.backward(g); });
}

}  // namespace strata::ops::cpu
