// A chunk's factors and what its tokens add to the state (space_chunk.h).
#include "strata/ops/linear_attention/space_chunk.h"

#include <algorithm>

#include "strata/ops/linear_attention/chunk_rows.h"

namespace strata::ops::cpu {

SpaceChunk::SpaceChunk(const SpaceArguments& arguments, int64_t of_group)
    : a(arguments),
      group(of_group),
      state_stride(padded_columns(a.state_dim)),
      head_stride(padded_columns(a.head_dim)),
      score_stride(padded_columns(a.chunk_size)),
      b_(zeros(a.chunk_size * state_stride)),
      c_(zeros(a.chunk_size * state_stride)),
      decayed_(zeros(a.chunk_size * state_stride)),
      transposed_(zeros(a.state_dim * score_stride)),
      own_(zeros(a.chunk_size * head_stride)),
      scaled_(zeros(a.chunk_size * head_stride)),
      products_(zeros(a.chunk_size * score_stride)),
      between_(zeros(a.chunk_size * score_stride)),
      scores_(zeros(a.chunk_size * score_stride)),
      steps_(static_cast<size_t>(score_stride)),
      kept_(static_cast<size_t>(score_stride)),
      to_token_(static_cast<size_t>(score_stride)) {}

void SpaceChunk::load_states(int64_t first_channel, LineBuffer& to) const {
  for (int64_t i = 0; i < tokens_; ++i) {
    const int64_t at = ids_[i] * a.row_channels() + first_channel + group * a.state_dim;
    copy_row(a.type, at_index(a.type, a.xbc, at), a.state_dim, to.get() + i * state_stride);
  }
}

bool SpaceChunk::load(int64_t index) {
  ids_ = a.source + index * a.chunk_size;
  tokens_ = std::find(ids_, ids_ + a.chunk_size, a.tokens) - ids_;
  begins_ = a.keeps[index] == 0.0f;
  if (tokens_ == 0) return false;
  load_states(a.channels(), b_);
  load_states(a.channels() + a.groups * a.state_dim, c_);
  const Matrix transposed{transposed_.get(), score_stride};
  transpose(tokens_, a.state_dim, b(), transposed);
  product(tokens_, tokens_, a.state_dim, c(), transposed, products(), /*add=*/false);
  return true;
}

void SpaceChunk::load_head(int64_t head) {
  head_ = head;
  for (int64_t i = 0; i < tokens_; ++i) {
    steps_[static_cast<size_t>(i)] = a.steps[ids_[i] * a.heads + head];
  }
  exp_row(steps_.data(), a.rate[head], tokens_, kept_.data());
  read_heads(a.xbc, a.row_channels(), own());
  scaled_rows_to(own_.get(), steps_.data(), tokens_, head_stride, scaled_.get());
  running_products({.tokens = tokens_,
                    .stride = score_stride,
                    .kept = kept_.data(),
                    .products = products_.get(),
                    .between = between_.get(),
                    .scores = scores_.get()});
  // Its own first token included.
  for (int64_t i = 0; i < tokens_; ++i) {
    to_token_[static_cast<size_t>(i)] = between_.get()[i * score_stride] * kept_[0];
  }
}

void SpaceChunk::read_heads(const void* x, int64_t row_channels, Matrix to) const {
  for (int64_t i = 0; i < tokens_; ++i) {
    const int64_t at = ids_[i] * row_channels + head_ * a.head_dim;
    float* row = to.data + i * to.stride;
    copy_row(a.type, at_index(a.type, x, at), a.head_dim, row);
    std::fill(row + a.head_dim, row + to.stride, 0.0f);
  }
}

Matrix SpaceChunk::decayed_c() {
  scaled_rows_to(c_.get(), to_token_.data(), tokens_, state_stride, decayed_.get());
  return {decayed_.get(), state_stride};
}

void SpaceChunk::add_tokens(bool had_state, float* state) {
  if (had_state) scale_all(state, kept(), a.state_dim * head_stride);
  scaled_rows_to(b_.get(), to_end(), tokens_, state_stride, decayed_.get());
  transposed_product(a.state_dim, a.head_dim, tokens_, {decayed_.get(), state_stride}, scaled(),
                     {state, head_stride}, /*add=*/had_state);
}

}  // namespace strata::ops::cpu
