// The products of one task of attention on the CPU, in fp32 or of bf16. Owns: how keys,
// rows and scores lie as factors. Never: the order of the steps (attention_cpu.cpp), arithmetic on
// scores (attention_scores.h), checks.
#pragma once

#include <memory>

#include "strata/ops/attention/attention_task.h"

namespace strata::ops::cpu {

// Factors and sums lie as the class that made them reads them: with their rows as rows of a
// product's left side or of its right side, or as columns.
//
// The task's keys or values.
struct HeadFactors {
  float* as_rows = nullptr;
  float* as_columns = nullptr;
  float* mean = nullptr;  // of all keys
};
// A block's queries, or its rows of the gradient of the result.
struct RowFactors {
  float* rows = nullptr;
  float* transposed = nullptr;
};
// A block's scores.
struct ScoreFactors {
  const float* rows = nullptr;
  const float* transposed = nullptr;
};

enum class FactorUse { kOneWay, kTransposed, kBothWays };

// Buffers hold for the task. Products leave out what is masked, but for the corners of their parts.
class AttentionProducts : public AttentionTask {
 public:
  using AttentionTask::AttentionTask;

  // For make_scores(): kTransposed; for apply_scores(): kOneWay.
  virtual HeadFactors load_heads(const HeadsView& view, FactorUse use) = 0;

  // For make_scores(): kOneWay; also for add_transposed(): kBothWays.
  virtual RowFactors take_rows(FactorUse use) = 0;
  virtual void load_queries(const QueryBlock& block, const RowFactors& rows) const = 0;
  virtual void load_rows(const QueryBlock& block, const HeadsView& view,
                         const RowFactors& rows) const = 0;
  // dots [rows] = products of the rows with those of `view`. `scratch`: as take_row_sums().
  virtual void dot_rows_with(const QueryBlock& block, const RowFactors& rows, const HeadsView& view,
                             float* scratch, float* dots) const = 0;

  // [rows, score_stride_] and as many as products write beside them.
  virtual float* take_scores() = 0;
  // scores [rows, keys] = rows x heads; of queries and keys: times the scale.
  virtual void make_scores(const QueryBlock& block, const RowFactors& rows,
                           const HeadFactors& heads, int64_t key, int64_t keys,
                           float* scores) const = 0;
  virtual void scale_query_scores(const ScoreBlock& scores) const = 0;

  // What stands there until the next call. For apply_scores(): kOneWay; for add_transposed():
  // kTransposed.
  virtual ScoreFactors factors_of(const ScoreBlock& scores, FactorUse use) = 0;

  // [rows, width_] and as many as products write beside them.
  virtual float* take_row_sums() = 0;
  // sums (+)= scores [rows, keys] x heads [keys, width_].
  virtual void apply_scores(const QueryBlock& block, const ScoreFactors& scores,
                            const HeadFactors& heads, int64_t key, int64_t keys, bool add,
                            float* sums) const = 0;

  // The same of their gradients and keys that were loaded for both ways.
  virtual void apply_gradients(const QueryBlock& block, const ScoreFactors& gradients,
                               const HeadFactors& heads, int64_t key, int64_t keys, bool add,
                               float* sums) const = 0;

  // Zeros for all keys of the task.
  virtual float* take_head_sums() = 0;
  // sums += transpose of scores [rows, keys] x rows [rows, width_].
  virtual void add_transposed(const QueryBlock& block, const ScoreFactors& scores,
                              const RowFactors& rows, int64_t key, int64_t keys,
                              float* sums) const = 0;
  // Writes the summed products of scores' gradients and queries.
  virtual void write_key_gradients(const float* sums, const HeadsView& to) = 0;
  // Writes the summed products of scores and rows.
  virtual void write_value_gradients(const float* sums, const HeadsView& to) = 0;
};

// Products of bf16 where the tensors are, the processor has a matrix unit for them, a document is
// long enough to gain and there are no vectors of positions; else in fp32.
std::unique_ptr<AttentionProducts> attention_products(const AttentionArguments& a,
                                                      const TaskRange& range,
                                                      AttentionScratch& scratch);

// Whether the thread that multiplies needs a TileScope.
bool attention_uses_tiles(const AttentionArguments& a);

std::unique_ptr<AttentionProducts> fp32_attention_products(const AttentionArguments& a,
                                                           const TaskRange& range,
                                                           AttentionScratch& scratch);

}  // namespace strata::ops::cpu
