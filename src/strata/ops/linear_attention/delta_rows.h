// What the delta rule does to rows and scores of a chunk between its products. Owns: arithmetic on
// elements. Never: products, where rows come from (delta_chunk.h).
#pragma once

#include <cstdint>

namespace strata::ops::cpu {

// Scores of a chunk's tokens (rows) with those up to them (columns), all [tokens, stride].
struct DeltaScores {
  int64_t tokens, stride;
  const float* kept;     // [tokens], of what was there before the token
  const float* beta;     // [tokens]
  const float* keys;     // k k^T
  const float* queries;  // q k^T; of both what stands right of the diagonal is any number
  float* between;        // how much is left of a column at the row, 0 right of the diagonal
  float* mix;            // -beta between keys, left of the diagonal
  float* scores;         // between queries
};
void decay_scores(const DeltaScores& s);

struct DeltaScoreGradients {
  const float* dmix;  // of what is solved, negative: [tokens, stride] as all here
  const float* dscores;
  float* dkeys;  // added to, as all that follows
  float* dqueries;
  float* dbeta;   // [tokens]
  float* decays;  // [tokens], as DecaySums::own has them (chunk_rows.h); not added to
};
void decay_scores_backward(const DeltaScores& s, const DeltaScoreGradients& g);

// y = x / |x| times `scale`, with 1e-6 below the root; zeros up to `width`. Returns 1 / |x|.
float unit_row(const float* x, int64_t n, int64_t width, float scale, float* y);
// dx of that, of y and the 1 / |x| that it returned.
void unit_row_backward(const float* dy, const float* y, int64_t n, float scale, float inverse,
                       float* dx);

// x [rows, columns] = (1 - mix)^-1 x for the strictly lower triangles of `mix`, at most 16 rows; or
// with its transpose.
struct SmallSolve {
  const float* mix;
  int64_t stride, rows, columns, x_stride;
};
void solve_rows(const SmallSolve& s, float* x);
void solve_rows_transposed(const SmallSolve& s, float* x);

}  // namespace strata::ops::cpu
