// The state space forward: a task is a lane and some heads of a group, one after the other in each
// chunk.
#include <ATen/Parallel.h>

#include <algorithm>

#include "strata/ops/linear_attention/chunk_rows.h"
#include "strata/ops/linear_attention/space_chunk.h"

namespace strata::ops::cpu {
namespace {

class ForwardTask {
 public:
  ForwardTask(const SpaceArguments& a, int64_t group, int64_t first_head, int64_t heads)
      : a_(a),
        first_(first_head),
        heads_(heads),
        chunk_(a, group),
        out_(a.chunk_size * chunk_.head_stride),
        states_(heads * a.state_dim * chunk_.head_stride) {}

  void run(int64_t lane, void* out) {
    bool has_state = false;
    for (int64_t index = lane * a_.chunks; index < (lane + 1) * a_.chunks; ++index) {
      if (!chunk_.load(index)) break;
      has_state = has_state && !chunk_.begins_document();
      for (int64_t head = 0; head < heads_; ++head) {
        chunk_.load_head(first_ + head);
        run_head(has_state, states_.get() + head * a_.state_dim * chunk_.head_stride);
        write(out);
      }
      has_state = true;
    }
  }

 private:
  void run_head(bool has_state, float* state) {
    const Matrix out{out_.get(), chunk_.head_stride};
    lower_product(chunk_.tokens(), a_.head_dim, chunk_.scores(), chunk_.scaled(), out,
                  /*add=*/false);
    if (has_state) {
      product(chunk_.tokens(), a_.head_dim, a_.state_dim, chunk_.decayed_c(),
              {state, chunk_.head_stride}, out, /*add=*/true);
    }
    add_multiple(chunk_.own().data, a_.skip[chunk_.head()], chunk_.tokens() * chunk_.head_stride,
                 out.data);
    chunk_.add_tokens(has_state, state);
  }

  void write(void* out) const {
    for (int64_t i = 0; i < chunk_.tokens(); ++i) {
      const int64_t at = chunk_.token_ids()[i] * a_.channels() + chunk_.head() * a_.head_dim;
      write_row(a_.type, out_.get() + i * chunk_.head_stride, a_.head_dim,
                at_index(a_.type, out, at));
    }
  }

  const SpaceArguments& a_;
  int64_t first_, heads_;
  SpaceChunk chunk_;
  LineBuffer out_, states_;
};

}  // namespace

void state_space(const SpaceArguments& a, void* out) {
  at::parallel_for(0, a.tasks(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const HeadBlock block = head_block(a, task);
      ForwardTask(a, block.group, block.first, block.heads).run(block.lane, out);
    }
  });
}

}  // namespace strata::ops::cpu
