#include "strata/optim/adamw.h"

#include <cmath>
#include <regex>

#include "strata/ops/adamw.h"
#include "strata/ops/square_sum.h"

namespace strata::optim {

bool is_decayed(const std::string& parameter_name) {
  static const std::regex kNotDecayed(R"(bias|layernorm|rmsnorm|(^|\.)norm($|\.)|_norm($|\.))",
                                      std::regex::icase | std::regex::optimize);
  return !std::regex_search(parameter_name, kNotDecayed);
}

double global_gradient_norm(shard::UnitStore& store) {
  const int rank = store.mesh().shard->rank();
  double sum = 0;
  for (int u = 0; u < store.num_units(); ++u) {
    const auto& segments = store.unit(u).segments;
    for (size_t s = 0; s < segments.size(); ++s) {
      if (!segments[s].trainable) continue;
      const at::Tensor& gradient = store.home(u, static_cast<int>(s)).gradient;
      // Piece by piece: what lies between tensors is padding with undefined content.
      for (const shard::Piece& piece : shard::pieces_of(segments[s], rank)) {
        sum += ops::square_sum(gradient.narrow(0, piece.shard_begin, piece.length));
      }
    }
  }
  at::Tensor total = at::full({1}, sum, at::kDouble);
  store.mesh().shard->all_reduce(total)->wait();
  return std::sqrt(total.item<double>());
}

double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

AdamW::AdamW(shard::UnitStore& store, const AdamWOptions& options)
    : store_(store), options_(options) {
  const int rank = store.mesh().shard->rank();
  moments_.resize(static_cast<size_t>(store.num_units()));
  for (int u = 0; u < store.num_units(); ++u) {
    const auto& segments = store.unit(u).segments;
    auto& of_unit = moments_[static_cast<size_t>(u)];
    of_unit.resize(segments.size());
    for (int s = 0; s < static_cast<int>(segments.size()); ++s) {
      const shard::Segment& segment = segments[static_cast<size_t>(s)];
      if (!segment.trainable) continue;
      const auto options_f32 = store.home(u, s).gradient.options();
      of_unit[static_cast<size_t>(s)] = {at::zeros({segment.shard_numel}, options_f32),
                                         at::zeros({segment.shard_numel}, options_f32)};
      for (const shard::Piece& piece : shard::pieces_of(segment, rank)) {
        const bool decayed = is_decayed(piece.parameter->name());
        const bool continues = !runs_.empty() && runs_.back().unit == u &&
                               runs_.back().segment == s && runs_.back().decayed == decayed &&
                               runs_.back().begin + runs_.back().length == piece.shard_begin;
        if (continues) {
          runs_.back().length += piece.length;
        } else {
          runs_.push_back({u, s, piece.shard_begin, piece.length, decayed});
        }
      }
    }
  }
}

void AdamW::step(double learning_rate, double gradient_scale) {
  ++num_steps_;
  ops::AdamWStep step;
  step.learning_rate = learning_rate;
  step.beta1 = options_.beta1;
  step.beta2 = options_.beta2;
  step.eps = options_.eps;
  step.step = num_steps_;
  step.grad_scale = static_cast<float>(gradient_scale);
  for (const Run& run : runs_) {
    shard::Home& home = store_.home(run.unit, run.segment);
    Moments& state = moments(run.unit, run.segment);
    step.weight_decay = run.decayed ? options_.weight_decay : 0;
    const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, run.begin, run.length); };
    ops::adamw_(part(home.value), part(home.gradient), part(state.exp_avg), part(state.exp_avg_sq),
                step);
  }
}

std::vector<StateTensor> AdamW::state() {
  const int rank = store_.mesh().shard->rank();
  std::vector<StateTensor> tensors;
  for (int u = 0; u < store_.num_units(); ++u) {
    const auto& segments = store_.unit(u).segments;
    for (int s = 0; s < static_cast<int>(segments.size()); ++s) {
      if (!segments[static_cast<size_t>(s)].trainable) continue;
      for (const shard::Piece& piece : shard::pieces_of(segments[static_cast<size_t>(s)], rank)) {
        const auto add = [&](const char* name, const at::Tensor& flat) {
          tensors.push_back({name, piece.parameter, piece.parameter->shape(), piece.tensor_begin,
                             flat.narrow(0, piece.shard_begin, piece.length)});
        };
        add("exp_avg", moments(u, s).exp_avg);
        add("exp_avg_sq", moments(u, s).exp_avg_sq);
      }
    }
  }
  return tensors;
}

AdamW::Moments& AdamW::moments(int unit, int segment) {
  return moments_[static_cast<size_t>(unit)][static_cast<size_t>(segment)];
}

}  // namespace strata::optim
