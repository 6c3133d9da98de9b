// Blocked causal attention on the CPU in fp32. A task is one document and one kv head; the query
// heads of the kv head are stacked as rows, so that its keys are read once for all of them.
// Never: checks.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "strata/ops/block_product.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/vectorize.h"

namespace strata::ops::cpu {

namespace {

constexpr int64_t kBlockRows = 128;  // rows (query x head of the group) of a block of scores
constexpr int64_t kBlockKeys = 256;  // its columns

// What one block of scores looks like to the kernels on its rows.
struct ScoreBlock {
  float* scores;
  int64_t rows, keys, stride;
  const int64_t* visible;  // [rows], how many of the keys the row sees
};

// Online softmax. Turns scores into exp(score - max), 0 where masked; carries the running maximum
// and sum of each row and says in `correction` by what earlier results of the row are multiplied.
STRATA_VECTORIZED void softmax_block(const ScoreBlock& block, float* max, float* sum,
                                     float* correction) {
  for (int64_t r = 0; r < block.rows; ++r) {
    float* row = block.scores + r * block.stride;
    const int64_t n = block.visible[r];
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
    for (int64_t j = n; j < block.keys; ++j) row[j] = 0;
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
                                              const float* delta, float* __restrict grad) {
  for (int64_t r = 0; r < block.rows; ++r) {
    float* __restrict row = block.scores + r * block.stride;
    float* __restrict grad_row = grad + r * block.stride;
    const int64_t n = block.visible[r];
    const float row_lse = lse[r];
    const float row_delta = delta[r];
    for (int64_t j = 0; j < n; ++j) {
      const float p = exp_vectorizable(row[j] - row_lse);
      row[j] = p;
      grad_row[j] = p * (grad_row[j] - row_delta);
    }
    for (int64_t j = n; j < block.keys; ++j) {
      row[j] = 0;
      grad_row[j] = 0;
    }
  }
}

STRATA_VECTORIZED float dot_row(const float* a, const float* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

STRATA_VECTORIZED void scaled_copy(const float* from, float factor, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i] * factor;
}

// Scratch without a page of zeros being written first.
std::unique_ptr<float[]> make_scratch(int64_t n) {
  return std::unique_ptr<float[]>(new float[static_cast<size_t>(n)]);
}

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
};

// A block of queries of a task: rows are (query, head of the group), query-major.
struct QueryBlock {
  int64_t begin, count;  // queries, in the document
  int64_t rows;
};

class TaskRunner {
 public:
  TaskRunner(const AttentionArguments& a, const Task& task)
      : a_(a),
        task_(task),
        group_(a.q.heads / a.k.heads),
        block_queries_(std::max<int64_t>(1, kBlockRows / group_)),
        max_rows_(block_queries_ * group_),
        block_keys_(std::min(kBlockKeys, task.keys)) {
    k_ = load_heads(a.k, k_copy_);
    v_ = load_heads(a.v, v_copy_);
    visible_.reset(new int64_t[static_cast<size_t>(max_rows_)]);
  }

  void forward(const HeadsView& out);
  void backward(const AttentionGradientViews& g);

 private:
  // The task's keys or values as fp32: the tensor itself, or a converted copy.
  Factor load_heads(const HeadsView& view, std::unique_ptr<float[]>& copy) {
    const void* first = address(a_.type, view, task_.first_key, task_.kv_head);
    if (a_.type == Element::kFloat) {
      return {static_cast<const float*>(first), view.token_stride};
    }
    copy = make_scratch(task_.keys * a_.channels);
    for (int64_t j = 0; j < task_.keys; ++j) {
      copy_row(a_.type, at_index(a_.type, first, j * view.token_stride), a_.channels,
               copy.get() + j * a_.channels);
    }
    return {copy.get(), a_.channels};
  }

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

  void copy_rows(const QueryBlock& block, const HeadsView& view, float factor, float* to) const {
    for_rows(block, view, [&](const void* from, int64_t r) {
      float* row = to + r * a_.channels;
      const float* source = read_row(a_.type, from, a_.channels, row);
      if (factor != 1.0f || source != row) scaled_copy(source, factor, row, a_.channels);
    });
  }

  // How many of the keys [key, key + keys) each row of the block sees.
  void count_visible(const QueryBlock& block, int64_t key, int64_t keys) {
    for (int64_t r = 0; r < block.rows; ++r) {
      const int64_t last = block.begin + r / group_ + a_.key_lead;
      visible_[r] = std::clamp<int64_t>(last - key + 1, 0, keys);
    }
  }

  // Keys that the block's last query sees.
  int64_t seen_keys(const QueryBlock& block) const {
    return std::min(task_.keys, block.begin + block.count + a_.key_lead);
  }

  Factor rows_from(const Factor& factor, int64_t row, bool transposed) const {
    return {factor.data + row * factor.stride, factor.stride, transposed};
  }

  float* lse_at(int64_t query, int64_t head_in_group) const {
    return a_.lse + (task_.kv_head * group_ + head_in_group) * a_.tokens + task_.first_query +
           query;
  }

  void forward_block(const QueryBlock& block, const float* q, float* scores, float* out_rows,
                     float* statistics);
  void write_block(const QueryBlock& block, const HeadsView& out, float* out_rows,
                   const float* statistics);
  void backward_block(const QueryBlock& block, const AttentionGradientViews& g, float* scratch,
                      float* dk, float* dv);
  void write_heads(const float* from, const HeadsView& to) const;

  const AttentionArguments& a_;
  Task task_;
  int64_t group_;
  int64_t block_queries_;
  int64_t max_rows_;
  int64_t block_keys_;
  std::unique_ptr<float[]> k_copy_, v_copy_;
  Factor k_, v_;
  std::unique_ptr<int64_t[]> visible_;
};

void TaskRunner::forward_block(const QueryBlock& block, const float* q, float* scores,
                               float* out_rows, float* statistics) {
  const int64_t d = a_.channels;
  float* max = statistics;
  float* sum = statistics + max_rows_;
  float* correction = statistics + 2 * max_rows_;
  std::fill_n(max, block.rows, -std::numeric_limits<float>::infinity());
  std::fill_n(sum, block.rows, 0.0f);
  const int64_t end = seen_keys(block);
  for (int64_t key = 0; key < end; key += block_keys_) {
    const int64_t keys = std::min(block_keys_, end - key);
    block_product({block.rows, keys, d}, {q, d}, rows_from(k_, key, true), /*add=*/false, scores,
                  block_keys_);
    count_visible(block, key, keys);
    softmax_block({scores, block.rows, keys, block_keys_, visible_.get()}, max, sum, correction);
    if (key > 0) scale_rows(out_rows, correction, block.rows, d);
    block_product({block.rows, d, keys}, {scores, block_keys_}, rows_from(v_, key, false),
                  /*add=*/key > 0, out_rows, d);
  }
}

void TaskRunner::write_block(const QueryBlock& block, const HeadsView& out, float* out_rows,
                             const float* statistics) {
  const int64_t d = a_.channels;
  const float* max = statistics;
  const float* sum = statistics + max_rows_;
  for_rows(block, out, [&](void* to, int64_t r) {
    float* row = out_rows + r * d;
    scaled_copy(row, 1.0f / sum[r], begin_row(a_.type, to, row), d);
    finish_row(a_.type, row, d, to);
    if (a_.lse != nullptr) {
      *lse_at(block.begin + r / group_, r % group_) = max[r] + std::log(sum[r]);
    }
  });
}

void TaskRunner::forward(const HeadsView& out) {
  const int64_t d = a_.channels;
  const auto scratch = make_scratch(max_rows_ * (2 * d + block_keys_ + 3));
  float* q = scratch.get();
  float* out_rows = q + max_rows_ * d;
  float* scores = out_rows + max_rows_ * d;
  float* statistics = scores + max_rows_ * block_keys_;
  for (int64_t begin = 0; begin < task_.queries; begin += block_queries_) {
    const QueryBlock block = query_block(begin);
    copy_rows(block, a_.q, a_.scale, q);
    forward_block(block, q, scores, out_rows, statistics);
    write_block(block, out, out_rows, statistics);
  }
}

// With scaled queries q: s = q k^T, p = exp(s - lse), dv += p^T dout, dp = dout v^T,
// ds = p (dp - sum(dout * out)), dk += ds^T q, dq = scale * ds k.
void TaskRunner::backward_block(const QueryBlock& block, const AttentionGradientViews& g,
                                float* scratch, float* dk, float* dv) {
  const int64_t d = a_.channels;
  float* q = scratch;
  float* dout = q + max_rows_ * d;
  float* dq = dout + max_rows_ * d;
  float* scores = dq + max_rows_ * d;
  float* grad = scores + max_rows_ * block_keys_;
  float* lse = grad + max_rows_ * block_keys_;
  float* delta = lse + max_rows_;
  copy_rows(block, a_.q, a_.scale, q);
  copy_rows(block, g.dout, 1.0f, dout);
  copy_rows(block, g.out, 1.0f, dq);  // only until delta is known
  for (int64_t r = 0; r < block.rows; ++r) {
    lse[r] = *lse_at(block.begin + r / group_, r % group_);
    delta[r] = dot_row(dout + r * d, dq + r * d, d);
  }
  const int64_t end = seen_keys(block);
  for (int64_t key = 0; key < end; key += block_keys_) {
    const int64_t keys = std::min(block_keys_, end - key);
    const ScoreBlock score_block{scores, block.rows, keys, block_keys_, visible_.get()};
    block_product({block.rows, keys, d}, {q, d}, rows_from(k_, key, true), false, scores,
                  block_keys_);
    block_product({block.rows, keys, d}, {dout, d}, rows_from(v_, key, true), false, grad,
                  block_keys_);
    count_visible(block, key, keys);
    softmax_backward_block(score_block, lse, delta, grad);
    block_product({keys, d, block.rows}, {scores, block_keys_, true}, {dout, d}, true, dv + key * d,
                  d);
    block_product({keys, d, block.rows}, {grad, block_keys_, true}, {q, d}, true, dk + key * d, d);
    block_product({block.rows, d, keys}, {grad, block_keys_}, rows_from(k_, key, false), key > 0,
                  dq, d);
  }
  for_rows(block, g.dq, [&](void* to, int64_t r) {
    float* row = dq + r * d;
    scaled_copy(row, a_.scale, begin_row(a_.type, to, row), d);
    finish_row(a_.type, row, d, to);
  });
}

void TaskRunner::write_heads(const float* from, const HeadsView& to) const {
  const int64_t d = a_.channels;
  for (int64_t j = 0; j < task_.keys; ++j) {
    void* row = mutable_address(a_.type, to, task_.first_key + j, task_.kv_head);
    if (a_.type == Element::kFloat) {
      std::copy_n(from + j * d, d, static_cast<float*>(row));
    } else {
      narrow(from + j * d, static_cast<uint16_t*>(row), d);
    }
  }
}

void TaskRunner::backward(const AttentionGradientViews& g) {
  const int64_t d = a_.channels;
  const auto scratch = make_scratch(max_rows_ * (3 * d + 2 * block_keys_ + 2));
  const auto sums = make_scratch(2 * task_.keys * d);
  float* dk = sums.get();
  float* dv = dk + task_.keys * d;
  std::fill_n(dk, 2 * task_.keys * d, 0.0f);
  for (int64_t begin = 0; begin < task_.queries; begin += block_queries_) {
    backward_block(query_block(begin), g, scratch.get(), dk, dv);
  }
  write_heads(dk, g.dk);
  write_heads(dv, g.dv);
}

// Runs f(runner) for each document and kv head.
template <typename F>
void for_tasks(const AttentionArguments& a, F f) {
  const auto documents = static_cast<int64_t>(a.offsets.size()) - 1;
  at::parallel_for(0, documents * a.k.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = a.offsets[i / a.k.heads];
      const int64_t keys = a.offsets[i / a.k.heads + 1] - first;
      if (keys == 0) continue;
      TaskRunner runner(a, {.first_query = first,
                            .first_key = first,
                            .queries = keys - a.key_lead,
                            .keys = keys,
                            .kv_head = i % a.k.heads});
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
