// A chunk of tokens as one key head and its value heads see it. Owns: its factors and the products
// that forward and backward begin with. Never: the state that goes from chunk to chunk
// (delta_rule_cpu.cpp, delta_gradient_cpu.cpp).
//
// Of a value head, with its keys K, queries Q, values V, rates beta, decays since the chunk's front
// e and to its end w, what is left between two tokens D, and the state S before the chunk:
//   M = (1 + beta D K K^T)^-1 beta (V - e K S)    what the tokens write, solved from the first on
//   O = (D Q K^T) M + e Q S                       what they read
//   S' = e_last S + (w K)^T M
#pragma once

#include <cstdint>
#include <vector>

#include "strata/ops/line_buffer.h"
#include "strata/ops/linear_attention/chunk_products.h"
#include "strata/ops/linear_attention/delta_kernel.h"
#include "strata/ops/linear_attention/delta_rows.h"

namespace strata::ops::cpu {

// Scratch of a thread, for one chunk and value head at a time. Rows of keys and queries are `keys`
// floats long, of values `values`, of scores `scores`: whole vectors, zeros after what is there.
class DeltaChunk {
 public:
  DeltaChunk(const DeltaArguments& a, int64_t key_head);

  // Chunk `index` of all lanes; whether it has tokens.
  bool load(int64_t index);
  // Of value head `head` of the key head's.
  void load_head(int64_t head);

  int64_t tokens() const { return tokens_; }
  const int64_t* token_ids() const { return ids_; }
  bool begins_document() const { return begins_; }
  int64_t value_head() const { return value_head_; }
  float kept() const {
    return to_token_[static_cast<size_t>(tokens_ - 1)];
  }  // of the state at the chunk's end

  // [tokens, value_dim] of x [all tokens, value channels], or of v.
  void read_values(const void* x, int64_t x_stride, int64_t first_channel, Matrix to) const;
  void read_own_values(Matrix to) const;

  // x = (1 - mix)^-1 x, or with the transpose.
  void solve(Matrix x) const;
  void solve_transposed(Matrix x) const;
  // What the tokens write, from the state before them (null: empty).
  void make_written(const float* state, Matrix written);
  // The state after them; `state` is that before them, unless it was empty.
  void add_written(Matrix written, bool had_state, float* state);

  // Buffers of row strides below; contents as load() and load_head() leave them.
  Matrix keys() const { return {keys_.get(), key_stride}; }
  Matrix queries() const { return {queries_.get(), key_stride}; }
  Matrix decayed_keys() { return scaled(keys_, to_token_.data(), decayed_); }
  Matrix decayed_queries() { return scaled(queries_, to_token_.data(), decayed_); }
  Matrix ending_keys() { return scaled(keys_, to_end(), decayed_); }
  Matrix scores() const { return {scores_.get(), score_stride}; }
  const DeltaScores& decayed_scores() const { return all_scores_; }
  const float* to_token() const { return to_token_.data(); }
  const float* to_end() const { return between_.get() + (tokens_ - 1) * score_stride; }
  const float* beta() const { return beta_.data(); }
  float query_scale() const { return query_scale_; }
  float inverse_key(int64_t i) const { return inverse_keys_[static_cast<size_t>(i)]; }
  float inverse_query(int64_t i) const { return inverse_queries_[static_cast<size_t>(i)]; }

  const DeltaArguments& a;
  const int64_t key_head;
  const int64_t key_stride, value_stride, score_stride;

 private:
  Matrix scaled(const LineBuffer& rows, const float* factor, LineBuffer& to) const;
  void load_rows(int64_t first_channel, float scale, LineBuffer& to, std::vector<float>& inverse);

  int64_t tokens_ = 0, value_head_ = 0;
  const int64_t* ids_ = nullptr;
  bool begins_ = false;
  float query_scale_;
  LineBuffer keys_, queries_, decayed_, transposed_, row_;
  LineBuffer key_products_, query_products_, between_, mix_, scores_;
  std::vector<float> inverse_keys_, inverse_queries_;
  std::vector<float> kept_, to_token_, beta_;
  DeltaScores all_scores_;
};

}  // namespace strata::ops::cpu
