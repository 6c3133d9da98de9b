#include "strata/nn/attention/rotated.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/nn/attention/attention_call.h"
#include "strata/nn/attention/kv_cache.h"
#include "strata/nn/function_state.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Rotation {
  int64_t num_heads;
  RopeTables tables;

  void turn_(const at::Tensor& x, bool inverse) const {
    tables.turn_(split_heads(x, num_heads, x.size(1) / num_heads), inverse);
  }
};

struct RotationFunction : torch::autograd::Function<RotationFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const Rotation& rotation) {
    rotation.turn_(x, /*inverse=*/false);
    save_state(context, rotation);
    return x.alias();
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    // Others may hold the gradient that comes in.
    const at::Tensor gradient = gradients[0].clone(at::MemoryFormat::Contiguous);
    load_state<Rotation>(context).turn_(gradient, /*inverse=*/true);
    return {gradient, at::Tensor()};
  }
};

}  // namespace

RopeTables rope_tables(Rope& rope, const ForwardContext& context) {
  KvCache* cache = context.generation.cache;
  if (cache == nullptr) return rope.tables(context.batch->of_documents().positions);
  cache->length_of_change = rope.options().length_of_change();
  cache->changes_with_length = rope.options().kind == RopeKind::kDynamic;
  return rope.tables(context.batch->positions, cache->text_length);
}

at::Tensor rotated(const at::Tensor& x, int64_t num_heads, const RopeTables& tables) {
  return RotationFunction::apply(x, Rotation{num_heads, tables});
}

}  // namespace strata::nn
