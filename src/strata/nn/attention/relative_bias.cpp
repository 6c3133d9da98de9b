#include "strata/nn/attention/relative_bias.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "strata/libtorch/host_copies.h"
#include "strata/nn/function_state.h"

namespace strata::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct BiasCall {
  Parameter* weight;
  at::Tensor buckets;  // int64 [2 reach + 1]
};

at::Tensor spread(const BiasCall& call) {
  const at::Tensor rows = call.weight->value().index_select(0, call.buckets);
  return rows.t().to(at::kFloat).contiguous();
}

struct BiasFunction : torch::autograd::Function<BiasFunction> {
  static at::Tensor forward(AutogradContext* context, const BiasCall& call, const at::Tensor&) {
    save_state(context, call);
    return spread(call);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& call = load_state<BiasCall>(context);
    const at::Tensor by_distance = gradients[0].t();
    at::Tensor sum = at::zeros(call.weight->shape(), by_distance.options());
    call.weight->accumulate_grad(sum.index_add_(0, call.buckets, by_distance));
    return {at::Tensor(), at::Tensor()};
  }
};

}  // namespace

int64_t bucket_of(int64_t distance, const RelativeBuckets& buckets) {
  int64_t count = buckets.count, first = 0;
  if (buckets.both_directions) {
    count /= 2;
    if (distance > 0) first = count;
    distance = std::abs(distance);
  } else {
    distance = std::max<int64_t>(-distance, 0);
  }
  // Half of the buckets are single distances, the others grow with the logarithm.
  const int64_t exact = count / 2;
  if (distance < exact) return first + distance;
  // In fp32, as the reference: its rounding decides at the borders.
  const float share = std::log(static_cast<float>(distance) / static_cast<float>(exact)) /
                      static_cast<float>(std::log(static_cast<double>(buckets.max_distance) /
                                                  static_cast<double>(exact)));
  const auto beyond = static_cast<int64_t>(share * static_cast<float>(count - exact));
  return first + std::min(exact + beyond, count - 1);
}

RelativeBias::RelativeBias(const std::string& path, const RelativeBuckets& buckets,
                           int64_t num_heads, at::ScalarType storage)
    : buckets_(buckets), weight_(path + ".weight", {buckets.count, num_heads}, storage) {
  weight_.set_embedding_table();
}

at::Tensor RelativeBias::table(const at::Tensor& anchor, int64_t reach) {
  const at::Tensor places = at::empty({2 * reach + 1}, at::kLong);
  for (int64_t i = 0; i <= 2 * reach; ++i) {
    places.data_ptr<int64_t>()[i] = bucket_of(i - reach, buckets_);
  }
  const BiasCall call{&weight_, to_device(places, weight_.value().device())};
  return weight_.requires_grad() ? BiasFunction::apply(call, anchor) : spread(call);
}

}  // namespace strata::nn
