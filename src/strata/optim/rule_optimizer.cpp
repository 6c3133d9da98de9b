// State of elementwise update rules, piece by piece. Never: formulas.
#include "strata/optim/rule_optimizer.h"

#include <ATen/ATen.h>

#include "strata/ops/quant/dynamic.h"
#include "strata/optim/adamw.h"
#include "strata/shard/segments.h"

namespace strata::optim {
namespace {

// Elements decoded at once: a multiple of the block, small enough for the second cache.
constexpr int64_t kChunk = 65536;
// There are no such caches on a GPU, and launches cost.
constexpr int64_t kChunkOnGpu = int64_t{1} << 24;

int64_t blocks_of(int64_t n) { return (n + ops::quant::kStateBlock - 1) / ops::quant::kStateBlock; }

bool keeps_8bit(const nn::Parameter& parameter) {
  return parameter.numel() >= kMin8bitElements && !parameter.is_embedding_table();
}

}  // namespace

RuleOptimizer::RuleOptimizer(shard::UnitStore& store, const RuleOptions& options)
    : store_(store), options_(options), walk_(walk_of_parameters(store, options.sub_group_size)) {
  for (const shard::OwnPiece& own : shard::own_trained_pieces(store)) {
    parts_.push_back(make_part(own.unit, own.segment, own.piece));
  }
}

RuleOptimizer::Part RuleOptimizer::make_part(int unit, int segment,
                                             const shard::Piece& piece) const {
  Part part{unit,
            segment,
            piece,
            options_.decays_all || is_decayed(piece.parameter->name()),
            options_.is_8bit && keeps_8bit(*piece.parameter),
            {}};
  const auto on_device = at::TensorOptions().device(store_.home_device());
  for (const RuleState& state : state_of(options_.rule)) {
    Kept kept;
    if (part.is_8bit) {
      kept.codes = at::full({piece.length}, ops::quant::code_of_zero(state.is_signed),
                            on_device.dtype(at::kByte));
      kept.scales = at::zeros({blocks_of(piece.length)}, on_device);
    } else {
      kept.values = at::zeros({piece.length}, on_device);
    }
    part.kept.push_back(std::move(kept));
  }
  return part;
}

void RuleOptimizer::step(double learning_rate, double gradient_scale) {
  ++num_steps_;
  RuleStep step{.learning_rate = learning_rate,
                .beta1 = options_.beta1,
                .beta2 = options_.beta2,
                .eps = options_.eps,
                .weight_decay = 0,
                .step = num_steps_,
                .grad_scale = static_cast<float>(gradient_scale),
                .momentum = options_.momentum};
  if (!walk_) {
    for (Part& part : parts_) {
      const at::Tensor& flat = store_.home(part.unit, part.segment).value;
      step.weight_decay = part.decayed ? options_.weight_decay : 0;
      update(part, flat.narrow(0, part.piece.shard_begin, part.piece.length), 0, step);
    }
    return;
  }
  // What loading, saving or evaluating looked at need not stay in memory.
  store_.file()->forget_pages();
  walk_->run([&](const SubGroup& group, std::span<const at::Tensor> values) {
    for (Part& part : parts_) {
      if (part.unit != group.unit || part.segment != group.segment) continue;
      const auto [begin, length] = overlap_of(group, part.piece.shard_begin, part.piece.length);
      if (length <= 0) continue;
      step.weight_decay = part.decayed ? options_.weight_decay : 0;
      update(part, values[0].narrow(0, begin - group.begin, length), begin - part.piece.shard_begin,
             step);
    }
  });
}

void RuleOptimizer::rehearse() {
  if (walk_) walk_->run([](const SubGroup&, std::span<const at::Tensor>) {});
}

void RuleOptimizer::update(Part& part, const at::Tensor& values, int64_t first,
                           const RuleStep& step) {
  if (values.is_meta()) return;
  const at::Tensor& param = values;
  const int64_t end = first + values.numel();
  const auto of_segment = [&](const at::Tensor& flat) {
    return flat.narrow(0, part.piece.shard_begin + first, values.numel());
  };
  const at::Tensor grad = of_segment(store_.home(part.unit, part.segment).gradient);
  at::Tensor copy = store_.compute_copy(part.unit, part.segment);
  if (copy.defined()) copy = of_segment(copy);
  if (part.is_8bit && options_.rule == Rule::kAdamW && param.is_cuda()) {
    return ops::quant::adamw_8bit_(param, grad, {part.kept[0].codes, part.kept[0].scales},
                                   {part.kept[1].codes, part.kept[1].scales}, adamw_step(step),
                                   copy);
  }
  const int64_t chunk_size = param.is_cuda() ? kChunkOnGpu : kChunk;
  for (int64_t begin = first; begin < end; begin += chunk_size) {
    const int64_t count = std::min(chunk_size, end - begin);
    // The chunk of what is kept for the piece, or of what was given.
    const auto chunk = [&](const at::Tensor& flat) { return flat.narrow(0, begin, count); };
    const auto given = [&](const at::Tensor& flat) { return flat.narrow(0, begin - first, count); };
    std::vector<at::Tensor> state;
    for (size_t i = 0; i < part.kept.size(); ++i) {
      const Kept& kept = part.kept[i];
      if (!part.is_8bit) {
        state.push_back(chunk(kept.values));
        continue;
      }
      state.push_back(at::empty({count}, param.options()));
      ops::quant::decode_state(
          chunk(kept.codes),
          kept.scales.narrow(0, begin / ops::quant::kStateBlock, blocks_of(count)),
          state_of(options_.rule)[i].is_signed, state.back());
    }
    apply_rule(options_.rule, given(param), given(grad), state, step);
    if (copy.defined()) given(copy).copy_(given(param));
    for (size_t i = 0; part.is_8bit && i < part.kept.size(); ++i) {
      const Kept& kept = part.kept[i];
      ops::quant::encode_state(
          state[i], state_of(options_.rule)[i].is_signed, chunk(kept.codes),
          kept.scales.narrow(0, begin / ops::quant::kStateBlock, blocks_of(count)));
    }
  }
}

std::vector<StateTensor> RuleOptimizer::state() {
  std::vector<StateTensor> tensors;
  for (const Part& part : parts_) {
    const nn::Parameter* parameter = part.piece.parameter;
    for (size_t i = 0; i < part.kept.size(); ++i) {
      const Kept& kept = part.kept[i];
      const std::string number = std::to_string(i + 1);
      if (!part.is_8bit) {
        tensors.push_back({state_of(options_.rule)[i].name, parameter, parameter->shape(),
                           part.piece.tensor_begin, kept.values});
        continue;
      }
      tensors.push_back(
          {"state" + number, parameter, parameter->shape(), part.piece.tensor_begin, kept.codes});
      tensors.push_back({"absmax" + number,
                         parameter,
                         {blocks_of(parameter->numel())},
                         part.piece.tensor_begin / ops::quant::kStateBlock,
                         kept.scales});
    }
  }
  return tensors;
}

}  // namespace strata::optim
