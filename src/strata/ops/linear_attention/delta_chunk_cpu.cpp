// A chunk's factors, its products and what its tokens write (delta_chunk.h).
#include "strata/ops/linear_attention/delta_chunk.h"

#include <algorithm>
#include <cmath>

#include "strata/ops/linear_attention/chunk_rows.h"

namespace strata::ops::cpu {
namespace {

// Rows that are solved one by one between products.
constexpr int64_t kSolvedRows = 16;

}  // namespace

DeltaChunk::DeltaChunk(const DeltaArguments& arguments, int64_t head)
    : a(arguments),
      key_head(head),
      key_stride(padded_columns(a.key_dim)),
      value_stride(padded_columns(a.value_dim)),
      score_stride(padded_columns(a.chunk_size)),
      query_scale_(1.0f / std::sqrt(static_cast<float>(a.key_dim))),
      keys_(zeros(a.chunk_size * key_stride)),
      queries_(zeros(a.chunk_size * key_stride)),
      decayed_(zeros(a.chunk_size * key_stride)),
      transposed_(zeros(a.key_dim * score_stride)),
      row_(zeros(std::max(key_stride, value_stride))),
      key_products_(zeros(a.chunk_size * score_stride)),
      query_products_(zeros(a.chunk_size * score_stride)),
      between_(zeros(a.chunk_size * score_stride)),
      mix_(zeros(a.chunk_size * score_stride)),
      scores_(zeros(a.chunk_size * score_stride)),
      inverse_keys_(static_cast<size_t>(a.chunk_size)),
      inverse_queries_(static_cast<size_t>(a.chunk_size)),
      kept_(static_cast<size_t>(score_stride)),
      to_token_(static_cast<size_t>(score_stride)),
      beta_(static_cast<size_t>(score_stride)) {
  all_scores_ = {.tokens = 0,
                 .stride = score_stride,
                 .kept = kept_.data(),
                 .beta = beta_.data(),
                 .keys = key_products_.get(),
                 .queries = query_products_.get(),
                 .between = between_.get(),
                 .mix = mix_.get(),
                 .scores = scores_.get()};
}

void DeltaChunk::load_rows(int64_t first_channel, float scale, LineBuffer& to,
                           std::vector<float>& inverse) {
  for (int64_t i = 0; i < tokens_; ++i) {
    const void* from = at_index(a.type, a.qkv, ids_[i] * a.channels() + first_channel);
    const float* row = read_row(a.type, from, a.key_dim, row_.get());
    inverse[static_cast<size_t>(i)] =
        unit_row(row, a.key_dim, key_stride, scale, to.get() + i * key_stride);
  }
}

bool DeltaChunk::load(int64_t index) {
  ids_ = a.source + index * a.chunk_size;
  tokens_ = std::find(ids_, ids_ + a.chunk_size, a.tokens) - ids_;
  begins_ = a.keeps[index] == 0.0f;
  if (tokens_ == 0) return false;
  const int64_t channel = key_head * a.key_dim;
  load_rows(channel, query_scale_, queries_, inverse_queries_);
  load_rows(a.key_channels() + channel, 1.0f, keys_, inverse_keys_);
  const Matrix transposed{transposed_.get(), score_stride};
  transpose(tokens_, a.key_dim, keys(), transposed);
  product(tokens_, tokens_, a.key_dim, keys(), transposed, {key_products_.get(), score_stride},
          /*add=*/false);
  product(tokens_, tokens_, a.key_dim, queries(), transposed, {query_products_.get(), score_stride},
          /*add=*/false);
  return true;
}

void DeltaChunk::load_head(int64_t head) {
  value_head_ = key_head * a.ratio() + head;
  for (int64_t i = 0; i < tokens_; ++i) {
    const int64_t at = ids_[i] * a.value_heads + value_head_;
    kept_[static_cast<size_t>(i)] = a.g[at];
    beta_[static_cast<size_t>(i)] = a.beta[at];
  }
  exp_row(kept_.data(), 1.0f, tokens_, kept_.data());
  all_scores_.tokens = tokens_;
  decay_scores(all_scores_);
  for (int64_t i = 0; i < tokens_; ++i) {
    to_token_[static_cast<size_t>(i)] = between_.get()[i * score_stride] * kept_[0];
  }
}

void DeltaChunk::read_values(const void* x, int64_t x_stride, int64_t first_channel,
                             Matrix to) const {
  for (int64_t i = 0; i < tokens_; ++i) {
    const int64_t at = ids_[i] * x_stride + first_channel + value_head_ * a.value_dim;
    float* row = to.data + i * to.stride;
    copy_row(a.type, at_index(a.type, x, at), a.value_dim, row);
    std::fill(row + a.value_dim, row + to.stride, 0.0f);
  }
}

void DeltaChunk::read_own_values(Matrix to) const {
  read_values(a.qkv, a.channels(), 2 * a.key_channels(), to);
}

Matrix DeltaChunk::scaled(const LineBuffer& rows, const float* factor, LineBuffer& to) const {
  scaled_rows_to(rows.get(), factor, tokens_, key_stride, to.get());
  return {to.get(), key_stride};
}

void DeltaChunk::solve(Matrix x) const {
  for (int64_t row = 0; row < tokens_; row += kSolvedRows) {
    const int64_t rows = std::min(kSolvedRows, tokens_ - row);
    float* mix = mix_.get() + row * score_stride;
    const Matrix here{x.data + row * x.stride, x.stride};
    if (row > 0) product(rows, x.stride, row, {mix, score_stride}, x, here, /*add=*/true);
    solve_rows({mix + row, score_stride, rows, x.stride, x.stride}, here.data);
  }
}

void DeltaChunk::solve_transposed(Matrix x) const {
  for (int64_t row = (tokens_ - 1) / kSolvedRows * kSolvedRows; row >= 0; row -= kSolvedRows) {
    const int64_t rows = std::min(kSolvedRows, tokens_ - row), after = row + rows;
    const Matrix here{x.data + row * x.stride, x.stride};
    if (after < tokens_) {
      transposed_product(rows, x.stride, tokens_ - after,
                         {mix_.get() + after * score_stride + row, score_stride},
                         {x.data + after * x.stride, x.stride}, here, /*add=*/true);
    }
    solve_rows_transposed(
        {mix_.get() + row * score_stride + row, score_stride, rows, x.stride, x.stride}, here.data);
  }
}

void DeltaChunk::make_written(const float* state, Matrix written) {
  read_own_values(written);
  if (state != nullptr) {
    // Of negative keys, so that their product is taken off.
    const Matrix known = decayed_keys();
    scale_all(known.data, -1.0f, tokens_ * key_stride);
    product(tokens_, a.value_dim, a.key_dim, known, {const_cast<float*>(state), value_stride},
            written, /*add=*/true);
  }
  scaled_rows_to(written.data, beta_.data(), tokens_, value_stride, written.data);
  solve(written);
}

void DeltaChunk::add_written(Matrix written, bool had_state, float* state) {
  if (had_state) scale_all(state, kept(), a.key_dim * value_stride);
  transposed_product(a.key_dim, a.value_dim, tokens_, ending_keys(), written, {state, value_stride},
                     /*add=*/had_state);
}

}  // namespace strata::ops::cpu
