// Scores with vectors of relative positions (He et al. 2021, disentangled attention) for a block of
// queries and keys on the CPU, in fp32. Owns: the vectors of a task, the products of a block's
// queries and keys with them, and their gradients. Never: which vector a distance has, softmax.
//
// A row's products with all distances that the block has stand in a row; the one that a score takes
// is a column further on for the next key and one back for the next row: scores are read along
// diagonals, of which a view with a stride of one less is made.
#pragma once

#include <optional>

#include "strata/ops/attention/attention_products.h"

namespace strata::ops::cpu {

// A score [row, other] of `others` columns has the vector at `place` + other + count - 1 - row.
struct SlantedBlock {
  const float* rows;  // [count, width of a head]
  int64_t count, others;
  int64_t place;
};

// Products or their gradients where they are scores: (row, other) at first[row * stride + other].
struct SlantedScores {
  float* first;
  int64_t stride;
};

// The vectors of one head, by the distance from the row's own place on.
class PositionTable {
 public:
  struct Source {
    HeadsView view;
    int64_t head;
    int64_t first, count, step;  // vectors of the view: the first, how many, 1 or -1 to the next
    float factor;
    float* gradients;  // of the first; of the next a row of the width on, or back; may be null
  };
  PositionTable(Element type, int64_t channels, const Source& source, AttentionScratch& scratch);

  // Floats that the products of a block take.
  static int64_t room(int64_t rows, int64_t others) { return rows * stride(others + rows); }

  // Products of the block's rows, in `room`.
  SlantedScores multiply(const SlantedBlock& block, float* room) const;
  // Where the gradients of those products are to be written, zeros beside them.
  SlantedScores clear(const SlantedBlock& block, float* room) const;
  // What clear() gave is filled: adds to drows [count, width] and to the vectors' gradients.
  void add_gradients(const SlantedBlock& block, const float* room, float* drows) const;

 private:
  static int64_t stride(int64_t places) { return padded_columns(places) + 3 * kColumnMultiple; }
  int64_t panel_width(int64_t place) const;
  void load(Element type, const Source& source);

  int64_t channels_, width_, count_;
  float* rows_;     // [count_, width_]
  float* columns_;  // in panels of some vectors, each [channels, panel_width()]
  float* gradients_;
  int64_t gradient_stride_;
};

// Both sides of a task: vectors as keys, which queries meet, and as queries, which keys meet.
class PositionProducts {
 public:
  PositionProducts(const AttentionArguments& a, const AttentionTask& task,
                   AttentionScratch& scratch, const AttentionGradientViews& g = {},
                   int64_t piece = 0);

  // `queries`: of load_queries(), `keys`: of load_heads(), of fp32 products; scores of keys
  // [key, key + count) of the block.
  void add_scores(const QueryBlock& block, const float* queries, const float* keys, int64_t key,
                  int64_t count, const ScoreBlock& scores);
  // What is masked of `gradients` becomes 0. dq [rows, width] and dk [keys of the task, width] as
  // the products of fp32 sum them up. Vectors' own are added to those of the piece in `g`.
  void add_gradients(const QueryBlock& block, const float* queries, const float* keys, int64_t key,
                     int64_t count, const ScoreBlock& gradients, float* dq, float* dk);

 private:
  SlantedBlock of_queries(const QueryBlock& block, const float* queries, int64_t keys,
                          int64_t key) const;
  SlantedBlock of_keys(const QueryBlock& block, const float* keys, int64_t count,
                       int64_t key) const;
  // Of a vector, in [pieces, Hq, span, width].
  float* gradient_of(float* all, int64_t piece, int64_t vector) const;

  const AttentionArguments& a_;
  const AttentionTask& task_;
  const int64_t first_, count_;  // of the task's vectors, that of its last query and first key on
  std::optional<PositionTable> as_keys_, as_queries_;
  float *room_, *turned_;
};

}  // namespace strata::ops::cpu
