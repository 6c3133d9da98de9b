// The delta rule backward. A task is a lane and a key head: forward once more for the states before
// the chunks and what each writes, then the chunks from the last to the first.
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "strata/ops/linear_attention/chunk_rows.h"
#include "strata/ops/linear_attention/delta_chunk.h"

namespace strata::ops::cpu {
namespace {

int64_t state_size(const DeltaArguments& a) { return a.key_dim * padded_columns(a.value_dim); }
int64_t written_size(const DeltaArguments& a) { return a.chunk_size * padded_columns(a.value_dim); }

class BackwardTask {
 public:
  BackwardTask(const DeltaArguments& a, int64_t key_head, float* workspace);
  void run(int64_t lane, const void* dout, const DeltaGradients& gradients);

 private:
  void replay(int64_t lane);
  void differentiate_chunk(int64_t index, bool has_next, const void* dout,
                           const DeltaGradients& gradients);
  void differentiate_head(int64_t index, int64_t head, bool has_next, const DeltaGradients& g);
  void differentiate_written(const float* state, Matrix written, const float* dnext);
  void differentiate_state(const float* state, bool has_next, float* dnext);
  void write_head(const DeltaGradients& gradients);
  void write_keys(const DeltaGradients& gradients);

  // Of chunk `index` of its lane.
  float* state_at(int64_t index, int64_t head) const {
    return workspace_ + (index * a_.ratio() + head) * (state_size(a_) + written_size(a_));
  }
  float* written_at(int64_t index, int64_t head) const {
    return state_at(index, head) + state_size(a_);
  }
  Matrix values(const LineBuffer& buffer) const { return {buffer.get(), chunk_.value_stride}; }
  Matrix keys(const LineBuffer& buffer) const { return {buffer.get(), chunk_.key_stride}; }
  Matrix scores(const LineBuffer& buffer) const { return {buffer.get(), chunk_.score_stride}; }

  const DeltaArguments& a_;
  DeltaChunk chunk_;
  float* workspace_;
  int64_t used_ = 0;             // chunks of the lane
  LineBuffer dstates_;           // after the chunk, of each value head
  LineBuffer dout_, dwritten_;   // [tokens, values]; dwritten_ becomes that of what is solved
  LineBuffer own_values_;        // [tokens, values]
  LineBuffer dqueries_, dkeys_;  // [tokens, keys], sums over the value heads
  LineBuffer of_keys_;           // [tokens, keys]
  LineBuffer across_;            // a transpose of written values or of a state
  LineBuffer dmix_, dscores_;    // [tokens, tokens]
  LineBuffer dkey_products_, dquery_products_;  // sums over the value heads
  std::vector<float> dbeta_, negative_;
  std::vector<float> of_own_, of_front_, of_end_, decays_;  // as DecaySums has them
  float of_whole_ = 0;
};

BackwardTask::BackwardTask(const DeltaArguments& a, int64_t key_head, float* workspace)
    : a_(a),
      chunk_(a, key_head),
      workspace_(workspace),
      dstates_(a.ratio() * state_size(a)),
      dout_(written_size(a)),
      dwritten_(written_size(a)),
      own_values_(written_size(a)),
      dqueries_(a.chunk_size * chunk_.key_stride),
      dkeys_(a.chunk_size * chunk_.key_stride),
      of_keys_(a.chunk_size * chunk_.key_stride),
      across_(a.value_dim * std::max(chunk_.score_stride, chunk_.key_stride)),
      dmix_(a.chunk_size * chunk_.score_stride),
      dscores_(a.chunk_size * chunk_.score_stride),
      dkey_products_(a.chunk_size * chunk_.score_stride),
      dquery_products_(a.chunk_size * chunk_.score_stride),
      dbeta_(static_cast<size_t>(chunk_.score_stride)),
      negative_(static_cast<size_t>(chunk_.score_stride)),
      of_own_(static_cast<size_t>(chunk_.score_stride)),
      of_front_(static_cast<size_t>(chunk_.score_stride)),
      of_end_(static_cast<size_t>(chunk_.score_stride)),
      decays_(static_cast<size_t>(chunk_.score_stride)) {}

void BackwardTask::replay(int64_t lane) {
  bool has_state = false;
  for (used_ = 0; used_ < a_.chunks; ++used_) {
    if (!chunk_.load(lane * a_.chunks + used_)) break;
    has_state = has_state && !chunk_.begins_document();
    for (int64_t head = 0; head < a_.ratio(); ++head) {
      chunk_.load_head(head);
      const float* state = state_at(used_, head);
      const Matrix written{written_at(used_, head), chunk_.value_stride};
      chunk_.make_written(has_state ? state : nullptr, written);
      if (used_ + 1 == a_.chunks) continue;
      float* next = state_at(used_ + 1, head);
      if (has_state) std::copy_n(state, state_size(a_), next);
      chunk_.add_written(written, has_state, next);
    }
    has_state = true;
  }
}

void BackwardTask::run(int64_t lane, const void* dout, const DeltaGradients& gradients) {
  replay(lane);
  bool has_next = false;
  for (int64_t index = used_ - 1; index >= 0; --index) {
    chunk_.load(lane * a_.chunks + index);
    differentiate_chunk(index, has_next, dout, gradients);
    has_next = index > 0 && !chunk_.begins_document();
  }
}

void BackwardTask::differentiate_chunk(int64_t index, bool has_next, const void* dout,
                                       const DeltaGradients& gradients) {
  const int64_t of_keys = chunk_.tokens() * chunk_.key_stride;
  const int64_t of_scores = chunk_.tokens() * chunk_.score_stride;
  std::fill_n(dqueries_.get(), of_keys, 0.0f);
  std::fill_n(dkeys_.get(), of_keys, 0.0f);
  std::fill_n(dkey_products_.get(), of_scores, 0.0f);
  std::fill_n(dquery_products_.get(), of_scores, 0.0f);
  for (int64_t head = 0; head < a_.ratio(); ++head) {
    chunk_.load_head(head);
    chunk_.read_values(dout, a_.value_channels(), 0, values(dout_));
    chunk_.read_own_values(values(own_values_));
    differentiate_head(index, head, has_next, gradients);
  }
  write_keys(gradients);
}

void BackwardTask::differentiate_head(int64_t index, int64_t head, bool has_next,
                                      const DeltaGradients& gradients) {
  const bool has_state = index > 0 && !chunk_.begins_document();
  const float* state = has_state ? state_at(index, head) : nullptr;
  float* dnext = dstates_.get() + head * state_size(a_);
  for (std::vector<float>* sums : {&dbeta_, &of_front_, &of_end_}) std::ranges::fill(*sums, 0.0f);
  of_whole_ = 0;
  differentiate_written(state, {written_at(index, head), chunk_.value_stride},
                        has_next ? dnext : nullptr);
  decay_scores_backward(chunk_.decayed_scores(), {.dmix = dmix_.get(),
                                                  .dscores = dscores_.get(),
                                                  .dkeys = dkey_products_.get(),
                                                  .dqueries = dquery_products_.get(),
                                                  .dbeta = dbeta_.data(),
                                                  .decays = of_own_.data()});
  for (int64_t i = 0; i < chunk_.tokens(); ++i) {
    const int64_t row = i * chunk_.value_stride;
    dbeta_[static_cast<size_t>(i)] +=
        dot(dwritten_.get() + row, own_values_.get() + row, a_.value_dim);
  }
  if (has_state) differentiate_state(state, has_next, dnext);
  write_head(gradients);
}

// Gradients of what the chunk writes, of what that solves and of both kinds of scores; of the keys
// that end in the state after the chunk.
void BackwardTask::differentiate_written(const float* state, Matrix written, const float* dnext) {
  const int64_t tokens = chunk_.tokens();
  const Matrix dout = values(dout_), dwritten = values(dwritten_);
  const Matrix across{across_.get(), chunk_.score_stride};
  transposed_lower_product(tokens, a_.value_dim, chunk_.scores(), dout, dwritten, /*add=*/false);
  transpose(tokens, a_.value_dim, written, across);
  product(tokens, tokens, a_.value_dim, dout, across, scores(dscores_), /*add=*/false);
  if (dnext != nullptr) {
    const Matrix after{const_cast<float*>(dnext), chunk_.value_stride};
    product(tokens, a_.value_dim, a_.key_dim, chunk_.ending_keys(), after, dwritten, /*add=*/true);
  }
  chunk_.solve_transposed(dwritten);
  product(tokens, tokens, a_.value_dim, dwritten, across, scores(dmix_), /*add=*/false);
  if (dnext == nullptr) return;
  const Matrix states{across_.get(), chunk_.key_stride};
  transpose(a_.key_dim, a_.value_dim, {const_cast<float*>(dnext), chunk_.value_stride}, states);
  product(tokens, a_.key_dim, a_.value_dim, written, states, keys(of_keys_), /*add=*/false);
  add_scaled_rows(
      {.from = of_keys_.get(), .factor = chunk_.to_end(), .with = chunk_.keys().data, .sign = 1.0f},
      tokens, chunk_.key_stride, dkeys_.get(), of_end_.data());
  if (state != nullptr) of_whole_ = chunk_.kept() * dot(dnext, state, state_size(a_));
}

// Of the queries and keys that met the state before the chunk, and of that state, which takes the
// place of the gradient after it.
void BackwardTask::differentiate_state(const float* state, bool has_next, float* dnext) {
  const int64_t tokens = chunk_.tokens();
  const Matrix states{across_.get(), chunk_.key_stride}, of_keys = keys(of_keys_);
  transpose(a_.key_dim, a_.value_dim, {const_cast<float*>(state), chunk_.value_stride}, states);
  product(tokens, a_.key_dim, a_.value_dim, values(dout_), states, of_keys, /*add=*/false);
  add_scaled_rows({.from = of_keys.data,
                   .factor = chunk_.to_token(),
                   .with = chunk_.queries().data,
                   .sign = 1.0f},
                  tokens, chunk_.key_stride, dqueries_.get(), of_front_.data());

  product(tokens, a_.key_dim, a_.value_dim, values(dwritten_), states, of_keys, /*add=*/false);
  for (int64_t i = 0; i < tokens; ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t row = i * chunk_.key_stride;
    const float known =
        chunk_.to_token()[i] * dot(of_keys.data + row, chunk_.keys().data + row, a_.key_dim);
    dbeta_[at] -= known;
    of_front_[at] -= chunk_.beta()[i] * known;
    negative_[at] = -chunk_.beta()[i] * chunk_.to_token()[i];
  }
  std::vector<float> unused(dbeta_.size());
  add_scaled_rows(
      {.from = of_keys.data, .factor = negative_.data(), .with = of_keys.data, .sign = 0.0f},
      tokens, chunk_.key_stride, dkeys_.get(), unused.data());

  if (has_next) scale_all(dnext, chunk_.kept(), state_size(a_));
  transposed_product(a_.key_dim, a_.value_dim, tokens, chunk_.decayed_queries(), values(dout_),
                     {dnext, chunk_.value_stride}, /*add=*/has_next);
  // What is solved is beta (V - e K S).
  for (int64_t i = 0; i < tokens; ++i) negative_[static_cast<size_t>(i)] = -chunk_.beta()[i];
  scaled_rows_to(dwritten_.get(), negative_.data(), tokens, chunk_.value_stride, own_values_.get());
  transposed_product(a_.key_dim, a_.value_dim, tokens, chunk_.decayed_keys(), values(own_values_),
                     {dnext, chunk_.value_stride}, /*add=*/true);
}

void BackwardTask::write_head(const DeltaGradients& gradients) {
  scaled_rows_to(dwritten_.get(), chunk_.beta(), chunk_.tokens(), chunk_.value_stride,
                 own_values_.get());
  sum_decays({of_own_.data(), of_front_.data(), of_end_.data(), of_whole_}, chunk_.tokens(),
             decays_.data());
  for (int64_t i = 0; i < chunk_.tokens(); ++i) {
    const int64_t token = chunk_.token_ids()[i];
    const int64_t at = token * a_.value_heads + chunk_.value_head();
    gradients.dg[at] = decays_[static_cast<size_t>(i)];
    gradients.dbeta[at] = dbeta_[static_cast<size_t>(i)];
    const int64_t channel =
        token * a_.channels() + 2 * a_.key_channels() + chunk_.value_head() * a_.value_dim;
    write_row(a_.type, own_values_.get() + i * chunk_.value_stride, a_.value_dim,
              at_index(a_.type, gradients.dqkv, channel));
  }
}

void BackwardTask::write_keys(const DeltaGradients& gradients) {
  const int64_t tokens = chunk_.tokens();
  const Matrix dkey_products = scores(dkey_products_), dquery_products = scores(dquery_products_);
  lower_product(tokens, a_.key_dim, dquery_products, chunk_.keys(), keys(dqueries_), /*add=*/true);
  transposed_lower_product(tokens, a_.key_dim, dquery_products, chunk_.queries(), keys(dkeys_),
                           /*add=*/true);
  lower_product(tokens, a_.key_dim, dkey_products, chunk_.keys(), keys(dkeys_), /*add=*/true);
  transposed_lower_product(tokens, a_.key_dim, dkey_products, chunk_.keys(), keys(dkeys_),
                           /*add=*/true);
  for (int64_t i = 0; i < tokens; ++i) {
    const int64_t row = i * chunk_.key_stride;
    const int64_t at = chunk_.token_ids()[i] * a_.channels() + chunk_.key_head * a_.key_dim;
    unit_row_backward(dqueries_.get() + row, chunk_.queries().data + row, a_.key_dim,
                      chunk_.query_scale(), chunk_.inverse_query(i), of_keys_.get());
    write_row(a_.type, of_keys_.get(), a_.key_dim, at_index(a_.type, gradients.dqkv, at));
    unit_row_backward(dkeys_.get() + row, chunk_.keys().data + row, a_.key_dim, 1.0f,
                      chunk_.inverse_key(i), of_keys_.get());
    write_row(a_.type, of_keys_.get(), a_.key_dim,
              at_index(a_.type, gradients.dqkv, at + a_.key_channels()));
  }
}

}  // namespace

int64_t delta_workspace(const DeltaArguments& a) {
  return a.chunks * a.ratio() * (state_size(a) + written_size(a));
}

void delta_rule_backward(const DeltaArguments& a, const void* dout, float* workspace,
                         const DeltaGradients& gradients) {
  at::parallel_for(0, a.tasks(), 1, [&](int64_t begin, int64_t end) {
    float* own = workspace + at::get_thread_num() * delta_workspace(a);
    for (int64_t task = begin; task < end; ++task) {
      BackwardTask(a, task % a.key_heads, own).run(task / a.key_heads, dout, gradients);
    }
  });
}

}  // namespace strata::ops::cpu
