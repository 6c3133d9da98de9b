// One task of attention on the CPU: a document and one kv head, its queries in blocks. Owns: where
// the rows, keys, biases and dropout masks of a task stand in memory. Never: its products
// (attention_products.h), the order of the steps (attention_cpu.cpp), arithmetic on scores
// (attention_scores.h), checks.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "strata/ops/attention/attention_scores.h"
#include "strata/ops/cpu_kernels.h"
#include "strata/ops/line_buffer.h"
#include "strata/ops/matmul/block_product.h"

namespace strata::ops::cpu {

// Uninitialised buffers that the tasks of a thread use one after the other: fresh pages for every
// task would cost as much as a fifth of its time.
class AttentionScratch {
 public:
  // The next buffer, of at least n elements; the same task order finds the same buffers again.
  float* take(int64_t n) {
    if (next_ == buffers_.size()) buffers_.emplace_back();
    Buffer& buffer = buffers_[next_++];
    if (buffer.size < n) {
      buffer.data = LineBuffer(n);
      buffer.size = n;
    }
    return buffer.data.get();
  }
  void start_task() { next_ = 0; }

 private:
  struct Buffer {
    LineBuffer data;
    int64_t size = 0;
  };
  std::vector<Buffer> buffers_;
  size_t next_ = 0;
};

// The channels of one head of a token.
inline void* head_address(Element type, const HeadsView& view, int64_t token, int64_t head) {
  return at_index(type, view.data, token * view.token_stride + head * view.head_stride);
}

// One document and one kv head.
struct TaskRange {
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

// Blocks of scores.
struct AttentionBlocks {
  int64_t rows;          // (query x head of the group) of a block, as a rule
  int64_t keys;          // of a block, at most
  int64_t key_multiple;  // to which fewer are rounded up
};

// Blocks of keys begin at multiples of this.
constexpr int64_t kAlignedKeys = 64;

// Its queries go by in blocks. Buffers come from `scratch` and hold for the task.
class AttentionTask {
 public:
  AttentionTask(const AttentionArguments& a, const TaskRange& range, AttentionScratch& scratch,
                const AttentionBlocks& blocks);
  virtual ~AttentionTask() = default;

  int64_t queries() const { return task_.queries; }
  int64_t keys() const { return task_.keys; }
  int64_t block_queries() const { return block_queries_; }
  int64_t block_keys() const { return block_keys_; }
  int64_t max_rows() const { return max_rows_; }  // of a block
  int64_t width() const { return width_; }        // of a head's channels, with their padding
  int64_t document() const { return task_.document; }

  QueryBlock query_block(int64_t begin) const;

  // Calls f(address of the row in `view`, row) for each row of a block.
  template <typename F>
  void for_rows(const QueryBlock& block, const HeadsView& view, F f) const {
    for (int64_t i = 0; i < block.count; ++i) {
      for (int64_t h = 0; h < group_; ++h) {
        f(head_address(a_.type, view, task_.first_query + block.begin + i,
                       task_.kv_head * group_ + h),
          i * group_ + h);
      }
    }
  }

  // The last key that a query of the document sees.
  int64_t last_seen_key(int64_t query) const;
  // Keys that the block's last query sees.
  int64_t seen_keys(const QueryBlock& block) const;
  // Where the keys begin that a query of the block sees, or at a multiple of kAlignedKeys before.
  int64_t first_seen_key(const QueryBlock& block) const;

  float* lse_at(const QueryBlock& block, int64_t row) const;

  int64_t query_head(int64_t row) const { return task_.kv_head * group_ + row % group_; }

  // Where the bias of the row and the key stands in [Hq, bias_span]; those of the next keys follow.
  int64_t bias_place(const QueryBlock& block, int64_t row, int64_t key) const;

  // How many of the keys [key, key + keys) each row of the block sees: what follows is about those.
  void count_visible(const QueryBlock& block, int64_t key, int64_t keys);

  // Masks the scores of the keys from `key` on that lie before a row's window.
  void hide(const QueryBlock& block, int64_t key, float* scores) const;

  void add_bias(const QueryBlock& block, int64_t key, float* scores) const;

  // `dbias`: [Hq, bias_span] of the document.
  void add_bias_gradient(const QueryBlock& block, int64_t key, const float* grad,
                         float* dbias) const;

  // Zeroes and scales what dropout does to the probabilities, or to their gradients.
  void drop(const QueryBlock& block, int64_t key, float* scores) const;

  ScoreBlock score_block(const QueryBlock& block, int64_t keys, float* scores) const;

 protected:
  const AttentionArguments& a_;
  AttentionScratch& scratch_;
  const TaskRange task_;
  const int64_t width_;  // channels and their padding
  const int64_t group_;  // query heads of the kv head
  const int64_t block_queries_;
  const int64_t max_rows_;
  const int64_t block_keys_;
  const int64_t score_stride_;  // not a power of two, so that rows spread over the cache
  const std::unique_ptr<int64_t[]> visible_;
};

}  // namespace strata::ops::cpu
