#include "strata/optim/trailing_weights.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "strata/shard/segments.h"

namespace strata::optim {
namespace {

constexpr int64_t kExchangedAtOnce = int64_t{1} << 22;  // elements

}  // namespace

TrailingWeights::TrailingWeights(shard::UnitStore& store, std::unique_ptr<Optimizer> rule)
    : store_(store), rule_(std::move(rule)) {
  for (const shard::OwnPiece& own : shard::own_trained_pieces(store)) {
    const at::Tensor& value = store.home(own.unit, own.segment).value;
    parts_.push_back(
        {own.unit, own.segment, own.piece,
         at::zeros({own.piece.length},
                   at::TensorOptions().device(store.home_device()).dtype(value.scalar_type()))});
  }
}

void TrailingWeights::step(double learning_rate, double gradient_scale) {
  rule_->set_num_steps(num_steps_);
  rule_->step(learning_rate, gradient_scale);
  num_steps_ = rule_->num_steps();
}

std::vector<StateTensor> TrailingWeights::state() {
  std::vector<StateTensor> tensors = rule_->state();
  for (const Part& part : parts_) {
    const nn::Parameter* parameter = part.piece.parameter;
    tensors.push_back(
        {"reference", parameter, parameter->shape(), part.piece.tensor_begin, part.values});
  }
  return tensors;
}

at::Tensor TrailingWeights::trained(const Part& part) {
  return store_.home(part.unit, part.segment)
      .value.narrow(0, part.piece.shard_begin, part.piece.length);
}

void TrailingWeights::take() {
  for (Part& part : parts_) part.values.copy_(trained(part));
}

void TrailingWeights::follow(double share) {
  for (Part& part : parts_) part.values.mul_(1 - share).add_(trained(part), share);
}

void TrailingWeights::exchange() {
  for (Part& part : parts_) {
    const at::Tensor homes = trained(part);
    for (int64_t begin = 0; begin < homes.numel(); begin += kExchangedAtOnce) {
      const int64_t length = std::min(kExchangedAtOnce, homes.numel() - begin);
      at::Tensor home = homes.narrow(0, begin, length);
      at::Tensor value = part.values.narrow(0, begin, length);
      const at::Tensor moved = home.clone();
      home.copy_(value);
      value.copy_(moved);
    }
  }
}

}  // namespace strata::optim
