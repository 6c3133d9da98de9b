// A chunk of tokens as some heads of a group see it. Owns: its factors. Never: the state that goes
// from chunk to chunk (space_cpu.cpp, space_gradient_cpu.cpp).
//
// Of a head, with the group's B and C, its tokens X = steps x, decays since the chunk's front e and
// to its end w, what is left between two tokens D, and the state S before the chunk:
//   y = (D C B^T) X + e C S + skip x
//   S' = e_last S + (w B)^T X
#pragma once

#include <cstdint>
#include <vector>

#include "strata/ops/linear_attention/chunk_products.h"
#include "strata/ops/linear_attention/space_kernel.h"

namespace strata::ops::cpu {

// Scratch of a thread, for one chunk and head at a time. Rows of states are `state_stride` floats
// long, of heads `head_stride`, of scores `score_stride`: whole vectors, zeros after what is there.
class SpaceChunk {
 public:
  SpaceChunk(const SpaceArguments& a, int64_t group);

  // Chunk `index` of all lanes; whether it has tokens.
  bool load(int64_t index);
  void load_head(int64_t head);

  int64_t tokens() const { return tokens_; }
  const int64_t* token_ids() const { return ids_; }
  bool begins_document() const { return begins_; }
  int64_t head() const { return head_; }
  float kept() const { return to_token_[static_cast<size_t>(tokens_ - 1)]; }

  // The head's [tokens, head_dim] of x [all tokens, row_channels], of which it is the first part.
  void read_heads(const void* x, int64_t row_channels, Matrix to) const;
  // The state after the chunk; `state` is that before it, unless it was empty.
  void add_tokens(bool had_state, float* state);

  Matrix b() const { return {b_.get(), state_stride}; }
  Matrix c() const { return {c_.get(), state_stride}; }
  Matrix own() const { return {own_.get(), head_stride}; }        // x
  Matrix scaled() const { return {scaled_.get(), head_stride}; }  // X
  Matrix products() const { return {products_.get(), score_stride}; }
  Matrix between() const { return {between_.get(), score_stride}; }
  Matrix scores() const { return {scores_.get(), score_stride}; }
  Matrix decayed_c();
  const float* to_token() const { return to_token_.data(); }
  const float* to_end() const { return between_.get() + (tokens_ - 1) * score_stride; }
  const float* steps() const { return steps_.data(); }

  const SpaceArguments& a;
  const int64_t group;
  const int64_t state_stride, head_stride, score_stride;

 private:
  void load_states(int64_t first_channel, LineBuffer& to) const;

  int64_t tokens_ = 0, head_ = 0;
  const int64_t* ids_ = nullptr;
  bool begins_ = false;
  LineBuffer b_, c_, decayed_, transposed_, own_, scaled_, products_, between_, scores_;
  std::vector<float> steps_, kept_, to_token_;
};

}  // namespace strata::ops::cpu
