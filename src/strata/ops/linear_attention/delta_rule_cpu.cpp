// The delta rule forward: a task is a lane and a key head, its value heads one after the other in
// each chunk.
#include <ATen/Parallel.h>

#include <vector>

#include "strata/ops/linear_attention/delta_chunk.h"

namespace strata::ops::cpu {
namespace {

class ForwardTask {
 public:
  ForwardTask(const DeltaArguments& a, int64_t key_head)
      : a_(a),
        chunk_(a, key_head),
        written_(a.chunk_size * chunk_.value_stride),
        out_(a.chunk_size * chunk_.value_stride),
        states_(a.ratio() * a.key_dim * chunk_.value_stride) {}

  void run(int64_t lane, void* out) {
    bool has_state = false;
    for (int64_t index = lane * a_.chunks; index < (lane + 1) * a_.chunks; ++index) {
      if (!chunk_.load(index)) break;
      has_state = has_state && !chunk_.begins_document();
      for (int64_t head = 0; head < a_.ratio(); ++head) {
        chunk_.load_head(head);
        run_head(has_state, states_.get() + head * a_.key_dim * chunk_.value_stride);
        write(out);
      }
      has_state = true;
    }
  }

 private:
  void run_head(bool has_state, float* state) {
    const Matrix written{written_.get(), chunk_.value_stride};
    const Matrix out{out_.get(), chunk_.value_stride};
    chunk_.make_written(has_state ? state : nullptr, written);
    lower_product(chunk_.tokens(), a_.value_dim, chunk_.scores(), written, out, /*add=*/false);
    if (has_state) {
      product(chunk_.tokens(), a_.value_dim, a_.key_dim, chunk_.decayed_queries(),
              {state, chunk_.value_stride}, out, /*add=*/true);
    }
    chunk_.add_written(written, has_state, state);
  }

  void write(void* out) const {
    for (int64_t i = 0; i < chunk_.tokens(); ++i) {
      const float* row = out_.get() + i * chunk_.value_stride;
      const int64_t at =
          chunk_.token_ids()[i] * a_.value_channels() + chunk_.value_head() * a_.value_dim;
      write_row(a_.type, row, a_.value_dim, at_index(a_.type, out, at));
    }
  }

  const DeltaArguments& a_;
  DeltaChunk chunk_;
  LineBuffer written_, out_, states_;
};

}  // namespace

void delta_rule(const DeltaArguments& a, void* out) {
  at::parallel_for(0, a.tasks(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      ForwardTask(a, task % a.key_heads).run(task / a.key_heads, out);
    }
  });
}

}  // namespace strata::ops::cpu
