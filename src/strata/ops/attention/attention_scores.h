// What attention on the CPU does to the scores of a block of queries and keys, and to rows of
// heads. Owns: the softmax that sees one block of keys after the other, and its gradient. Never:
// products, where rows come from (attention_task.h).
#pragma once

#include <cstdint>

namespace strata::ops::cpu {

// What one block of scores looks like to the kernels on its rows. The kernels work on whole
// vectors: columns from `visible` on are masked, so what stands there does not matter;
// before them a score may be -inf.
struct ScoreBlock {
  float* scores;
  int64_t rows, columns, stride;  // columns: a multiple of kColumnMultiple
  const int64_t* visible;         // [rows], how many of the columns the row sees
};

// Online softmax. Turns scores into exp(score - max), 0 where masked, up to the end of a vector and
// one more (what is farther stays as it is: no product reads it); carries the running maximum
// and sum of each row and says in `correction` by what earlier results of the row are multiplied.
// All three: [rows]; before the first block max is -inf and sum 0.
void softmax_block(const ScoreBlock& block, float* max, float* sum, float* correction);

// Probabilities from scores and the forward's lse [rows], 0 where masked, as far as above; then
// grad = probability * (grad - delta), the gradient of the scores. delta: [rows], the sum of
// probability * grad over all that the row sees; null: the block has all of it. grad: as scores.
void softmax_backward_block(const ScoreBlock& block, const float* lse, const float* delta,
                            float* grad);

// Scores become cap * tanh(score / cap); `slopes`, as scores, their derivative, where not null.
// What is masked is computed, too.
void cap_scores(const ScoreBlock& block, float cap, float* slopes);
// grad *= slopes, as far as the rows see.
void multiply_scores(const ScoreBlock& block, const float* slopes, float* grad);

// x [rows, columns], row r by factor[r].
void scale_rows(float* x, const float* factor, int64_t rows, int64_t columns);

void add_row(const float* from, float* to, int64_t n);
void scaled_copy(const float* from, float factor, float* to, int64_t n);

// Rows of fp32 heads, [tokens, heads, channels]. They come from far away: the fewer instructions
// between two rows, the more of them are on their way at once.
struct HeadRows {
  const float* data;
  int64_t tokens, heads, channels, token_stride, head_stride;
};
// to [tokens x heads, width] = rows times factor, zeros after the channels.
void scaled_rows(const HeadRows& rows, float factor, float* to, int64_t width);
// dots [tokens x heads] = products of the rows with those of x [tokens x heads, width].
void dot_rows(const HeadRows& rows, const float* x, int64_t width, float* dots);

}  // namespace strata::ops::cpu
