// The state space backward. A task is a lane and some heads of a group: forward once more for the
// states before the chunks, then the chunks from the last to the first.
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "strata/ops/linear_attention/chunk_rows.h"
#include "strata/ops/linear_attention/space_chunk.h"

namespace strata::ops::cpu {
namespace {

int64_t state_size(const SpaceArguments& a) { return a.state_dim * padded_columns(a.head_dim); }

class BackwardTask {
 public:
  BackwardTask(const SpaceArguments& a, const HeadBlock& block, float* workspace);
  void run(const void* dout, const SpaceGradients& gradients);

 private:
  void replay();
  void differentiate_chunk(int64_t index, bool has_next, const void* dout,
                           const SpaceGradients& gradients);
  void differentiate_scores();
  void differentiate_after(const float* state, const float* dnext);
  void differentiate_state(const float* state, bool has_next, float* dnext);
  void write_head(const SpaceGradients& gradients);
  void write_shared(const SpaceGradients& gradients);

  float* state_at(int64_t index, int64_t head) const {
    return workspace_ + (index * block_.heads + head) * state_size(a_);
  }
  Matrix heads(const LineBuffer& buffer) const { return {buffer.get(), chunk_.head_stride}; }
  Matrix states(const LineBuffer& buffer) const { return {buffer.get(), chunk_.state_stride}; }
  Matrix scores(const LineBuffer& buffer) const { return {buffer.get(), chunk_.score_stride}; }

  const SpaceArguments& a_;
  HeadBlock block_;
  SpaceChunk chunk_;
  float* workspace_;
  int64_t used_ = 0;    // chunks of the lane
  LineBuffer dstates_;  // after the chunk, of each head
  LineBuffer dout_;     // [tokens, channels], as the next
  LineBuffer dscaled_;
  LineBuffer of_states_;                                    // [tokens, state_dim], as the next two
  LineBuffer db_, dc_;                                      // sums over the heads
  LineBuffer across_;                                       // a transpose
  LineBuffer dscores_;                                      // [tokens, tokens], as the next
  LineBuffer dproducts_;                                    // sums over the heads
  std::vector<float> of_own_, of_front_, of_end_, decays_;  // as DecaySums has them
  float of_whole_ = 0;
  std::vector<float> drate_, dskip_;  // of each head
};

BackwardTask::BackwardTask(const SpaceArguments& a, const HeadBlock& block, float* workspace)
    : a_(a),
      block_(block),
      chunk_(a, block.group),
      workspace_(workspace),
      dstates_(block.heads * state_size(a)),
      dout_(a.chunk_size * chunk_.head_stride),
      dscaled_(a.chunk_size * chunk_.head_stride),
      of_states_(a.chunk_size * chunk_.state_stride),
      db_(a.chunk_size * chunk_.state_stride),
      dc_(a.chunk_size * chunk_.state_stride),
      across_(a.head_dim * std::max(chunk_.score_stride, chunk_.state_stride)),
      dscores_(a.chunk_size * chunk_.score_stride),
      dproducts_(a.chunk_size * chunk_.score_stride),
      of_own_(static_cast<size_t>(chunk_.score_stride)),
      of_front_(static_cast<size_t>(chunk_.score_stride)),
      of_end_(static_cast<size_t>(chunk_.score_stride)),
      decays_(static_cast<size_t>(chunk_.score_stride)),
      drate_(static_cast<size_t>(block.heads)),
      dskip_(static_cast<size_t>(block.heads)) {}

void BackwardTask::replay() {
  bool has_state = false;
  for (used_ = 0; used_ < a_.chunks; ++used_) {
    if (!chunk_.load(block_.lane * a_.chunks + used_)) break;
    has_state = has_state && !chunk_.begins_document();
    for (int64_t head = 0; used_ + 1 < a_.chunks && head < block_.heads; ++head) {
      chunk_.load_head(block_.first + head);
      float* next = state_at(used_ + 1, head);
      if (has_state) std::copy_n(state_at(used_, head), state_size(a_), next);
      chunk_.add_tokens(has_state, next);
    }
    has_state = true;
  }
}

void BackwardTask::run(const void* dout, const SpaceGradients& gradients) {
  replay();
  bool has_next = false;
  for (int64_t index = used_ - 1; index >= 0; --index) {
    chunk_.load(block_.lane * a_.chunks + index);
    differentiate_chunk(index, has_next, dout, gradients);
    has_next = index > 0 && !chunk_.begins_document();
  }
  const int64_t at = block_.lane * a_.heads + block_.first;
  std::ranges::copy(drate_, gradients.drate + at);
  std::ranges::copy(dskip_, gradients.dskip + at);
}

void BackwardTask::differentiate_chunk(int64_t index, bool has_next, const void* dout,
                                       const SpaceGradients& gradients) {
  std::fill_n(db_.get(), chunk_.tokens() * chunk_.state_stride, 0.0f);
  std::fill_n(dc_.get(), chunk_.tokens() * chunk_.state_stride, 0.0f);
  std::fill_n(dproducts_.get(), chunk_.tokens() * chunk_.score_stride, 0.0f);
  const bool has_state = index > 0 && !chunk_.begins_document();
  for (int64_t head = 0; head < block_.heads; ++head) {
    chunk_.load_head(block_.first + head);
    chunk_.read_heads(dout, a_.channels(), heads(dout_));
    const float* state = has_state ? state_at(index, head) : nullptr;
    float* dnext = dstates_.get() + head * state_size(a_);
    std::ranges::fill(of_front_, 0.0f);
    std::ranges::fill(of_end_, 0.0f);
    of_whole_ = 0;
    differentiate_scores();
    if (has_next) differentiate_after(state, dnext);
    if (has_state) differentiate_state(state, has_next, dnext);
    write_head(gradients);
  }
  write_shared(gradients);
}

// Through the tokens of the chunk themselves.
void BackwardTask::differentiate_scores() {
  const int64_t tokens = chunk_.tokens();
  const Matrix across{across_.get(), chunk_.score_stride};
  transposed_lower_product(tokens, a_.head_dim, chunk_.scores(), heads(dout_), heads(dscaled_),
                           /*add=*/false);
  transpose(tokens, a_.head_dim, chunk_.scaled(), across);
  product(tokens, tokens, a_.head_dim, heads(dout_), across, scores(dscores_), /*add=*/false);
  running_products_backward({.tokens = tokens,
                             .stride = chunk_.score_stride,
                             .kept = nullptr,
                             .products = nullptr,
                             .between = chunk_.between().data,
                             .scores = chunk_.scores().data},
                            dscores_.get(), dproducts_.get(), of_own_.data());
}

// Through the state after the chunk.
void BackwardTask::differentiate_after(const float* state, const float* dnext) {
  const int64_t tokens = chunk_.tokens();
  const Matrix after{const_cast<float*>(dnext), chunk_.head_stride}, of_tokens = states(of_states_);
  scaled_rows_to(chunk_.b().data, chunk_.to_end(), tokens, chunk_.state_stride, of_tokens.data);
  product(tokens, a_.head_dim, a_.state_dim, of_tokens, after, heads(dscaled_), /*add=*/true);
  const Matrix across = states(across_);
  transpose(a_.state_dim, a_.head_dim, after, across);
  product(tokens, a_.state_dim, a_.head_dim, chunk_.scaled(), across, of_tokens, /*add=*/false);
  add_scaled_rows(
      {.from = of_tokens.data, .factor = chunk_.to_end(), .with = chunk_.b().data, .sign = 1.0f},
      tokens, chunk_.state_stride, db_.get(), of_end_.data());
  if (state != nullptr) of_whole_ = chunk_.kept() * dot(dnext, state, state_size(a_));
}

// Through the state before the chunk, whose gradient takes the place of that after it.
void BackwardTask::differentiate_state(const float* state, bool has_next, float* dnext) {
  const int64_t tokens = chunk_.tokens();
  const Matrix across = states(across_), of_tokens = states(of_states_);
  transpose(a_.state_dim, a_.head_dim, {const_cast<float*>(state), chunk_.head_stride}, across);
  product(tokens, a_.state_dim, a_.head_dim, heads(dout_), across, of_tokens, /*add=*/false);
  add_scaled_rows(
      {.from = of_tokens.data, .factor = chunk_.to_token(), .with = chunk_.c().data, .sign = 1.0f},
      tokens, chunk_.state_stride, dc_.get(), of_front_.data());
  if (has_next) scale_all(dnext, chunk_.kept(), state_size(a_));
  transposed_product(a_.state_dim, a_.head_dim, tokens, chunk_.decayed_c(), heads(dout_),
                     {dnext, chunk_.head_stride}, /*add=*/has_next);
}

void BackwardTask::write_head(const SpaceGradients& gradients) {
  const int64_t width = chunk_.head_stride, head = chunk_.head();
  const auto of_block = static_cast<size_t>(head - block_.first);
  const float rate = a_.rate[head], skip = a_.skip[head];
  sum_decays({of_own_.data(), of_front_.data(), of_end_.data(), of_whole_}, chunk_.tokens(),
             decays_.data());
  for (int64_t i = 0; i < chunk_.tokens(); ++i) {
    const int64_t token = chunk_.token_ids()[i];
    const float* own = chunk_.own().data + i * width;
    const float* dout = dout_.get() + i * width;
    float* dscaled = dscaled_.get() + i * width;
    const float step = chunk_.steps()[i], decay = decays_[static_cast<size_t>(i)];
    gradients.dsteps[token * a_.heads + head] = decay * rate + dot(dscaled, own, a_.head_dim);
    drate_[of_block] += decay * step;
    dskip_[of_block] += dot(dout, own, a_.head_dim);
    scale_all(dscaled, step, a_.head_dim);
    add_multiple(dout, skip, a_.head_dim, dscaled);
    const int64_t at = token * a_.row_channels() + head * a_.head_dim;
    write_row(a_.type, dscaled, a_.head_dim, at_index(a_.type, gradients.dxbc, at));
  }
}

void BackwardTask::write_shared(const SpaceGradients& gradients) {
  const int64_t tokens = chunk_.tokens(), of_groups = a_.groups * a_.state_dim;
  lower_product(tokens, a_.state_dim, scores(dproducts_), chunk_.b(), states(dc_), /*add=*/true);
  transposed_lower_product(tokens, a_.state_dim, scores(dproducts_), chunk_.c(), states(db_),
                           /*add=*/true);
  float* const block = gradients.shared + block_.block * a_.tokens * 2 * of_groups;
  for (int64_t i = 0; i < tokens; ++i) {
    float* to = block + chunk_.token_ids()[i] * 2 * of_groups + block_.group * a_.state_dim;
    std::copy_n(db_.get() + i * chunk_.state_stride, a_.state_dim, to);
    std::copy_n(dc_.get() + i * chunk_.state_stride, a_.state_dim, to + of_groups);
  }
}

}  // namespace

int64_t space_workspace(const SpaceArguments& a) {
  return a.chunks * a.heads_of_task() * state_size(a);
}

void state_space_backward(const SpaceArguments& a, const void* dout, float* workspace,
                          const SpaceGradients& gradients) {
  at::parallel_for(0, a.tasks(), 1, [&](int64_t begin, int64_t end) {
    float* own = workspace + at::get_thread_num() * space_workspace(a);
    for (int64_t task = begin; task < end; ++task) {
      BackwardTask(a, head_block(a, task), own).run(dout, gradients);
    }
  });
}

}  // namespace strata::ops::cpu
