#include "strata/optim/adamw.h"

#include <cmath>
#include <regex>

#include <ATen/ATen.h>

#include "strata/comm/liveness.h"
#include "strata/libtorch/plain_view.h"
#include "strata/ops/adamw.h"
#include "strata/ops/square_sum.h"
#include "strata/shard/segments.h"

namespace strata::optim {

bool is_decayed(const std::string& parameter_name) {
  // The last are modules of nn.LayerNorm: GPT-2's, Falcon's, MPT's.
  static const std::regex kNotDecayed(
      R"(bias|layernorm|rmsnorm|(^|\.)norm($|\.)|_norm($|\.)|(^|\.)ln_(1|2|f|attn|mlp)($|\.))"
      R"(|(^|\.)norm_(1|2)($|\.)|transformer\.norm_f($|\.))",
      std::regex::icase | std::regex::optimize);
  return !std::regex_search(parameter_name, kNotDecayed);
}

double global_gradient_norm(shard::UnitStore& store) {
  std::vector<at::Tensor> gradients;
  // Piece by piece: what lies between tensors is padding with undefined content.
  for (const auto& [unit, segment, piece] : shard::own_trained_pieces(store)) {
    const at::Tensor& gradient = store.home(unit, segment).gradient;
    gradients.push_back(plain_rows(gradient, piece.shard_begin, piece.length));
  }
  const double sum = ops::square_sum(gradients);
  at::Tensor total = at::full({1}, sum, at::kDouble);
  comm::sum_alike(store.mesh(), total);
  // The host has waited for them: are they the gradients that were to come?
  comm::require_alive(store.mesh());
  return std::sqrt(total.item<double>());
}

double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

AdamW::AdamW(shard::UnitStore& store, const AdamWOptions& options)
    : store_(store), options_(options) {
  allocate_moments();
  collect_runs();
  if (file_ || store_.file() != nullptr) walk_ = std::make_unique<SubGroupWalk>(sub_groups());
}

uint64_t state_file_bytes(const shard::Partition& partition) {
  constexpr int kMoments = 2;
  uint64_t bytes = 0;
  for (const shard::Unit& unit : partition.units) {
    for (const shard::Segment& segment : unit.segments) {
      if (!segment.trainable) continue;
      bytes += kMoments * shard::HomeFile::size_bytes(segment.shard_numel, at::kFloat);
    }
  }
  return bytes;
}

void AdamW::allocate_moments() {
  if (options_.state_files.is_on()) {
    file_ = std::make_unique<shard::HomeFile>(options_.state_files, "optimizer",
                                              state_file_bytes(store_.partition()));
  }
  moments_.resize(static_cast<size_t>(store_.num_units()));
  for (int u = 0; u < store_.num_units(); ++u) {
    moments_[static_cast<size_t>(u)].resize(store_.unit(u).segments.size());
  }
  for (const auto& [unit, segment, layout] : shard::trained_segments_of(store_)) {
    Moments& of_segment = moments(unit, segment);
    if (file_) {
      of_segment.exp_avg_region = file_->add(layout->shard_numel, at::kFloat);
      of_segment.exp_avg_sq_region = file_->add(layout->shard_numel, at::kFloat);
      of_segment.exp_avg = file_->view(of_segment.exp_avg_region);
      of_segment.exp_avg_sq = file_->view(of_segment.exp_avg_sq_region);
    } else {
      const auto options_f32 = store_.home(unit, segment).gradient.options();
      of_segment.exp_avg = at::zeros({layout->shard_numel}, options_f32);
      of_segment.exp_avg_sq = at::zeros({layout->shard_numel}, options_f32);
    }
  }
}

void AdamW::collect_runs() {
  for (const auto& [unit, segment, piece] : shard::own_trained_pieces(store_)) {
    const bool decayed = options_.decays_all || is_decayed(piece.parameter->name());
    const bool continues = !runs_.empty() && runs_.back().unit == unit &&
                           runs_.back().segment == segment && runs_.back().decayed == decayed &&
                           runs_.back().begin + runs_.back().length == piece.shard_begin;
    if (continues) {
      runs_.back().length += piece.length;
    } else {
      runs_.push_back({unit, segment, piece.shard_begin, piece.length, decayed});
    }
  }
}

// As many groups of each trained segment as its size requires.
std::vector<SubGroup> AdamW::sub_groups() {
  std::vector<SubGroup> groups;
  for (const auto& [unit, segment, layout] : shard::trained_segments_of(store_)) {
    const shard::Home& home = store_.home(unit, segment);
    const Moments& state = moments(unit, segment);
    std::vector<RestingArray> arrays{{home.value}, {state.exp_avg}, {state.exp_avg_sq}};
    if (home.region) arrays[0] = {home.value, store_.file(), *home.region};
    if (file_) {
      arrays[1] = {state.exp_avg, file_.get(), state.exp_avg_region};
      arrays[2] = {state.exp_avg_sq, file_.get(), state.exp_avg_sq_region};
    }
    add_groups({.unit = unit, .segment = segment, .arrays = std::move(arrays)}, layout->shard_numel,
               options_.sub_group_size, groups);
  }
  return groups;
}

void AdamW::update(const Run& run, const SubGroup& group, std::span<const at::Tensor> parts,
                   double learning_rate, double gradient_scale) {
  const auto [begin, length] = overlap_of(group, run.begin, run.length);
  if (length <= 0) return;
  ops::AdamWStep step;
  step.learning_rate = learning_rate;
  step.beta1 = options_.beta1;
  step.beta2 = options_.beta2;
  step.eps = options_.eps;
  step.weight_decay = run.decayed ? options_.weight_decay : 0;
  step.step = num_steps_;
  step.grad_scale = static_cast<float>(gradient_scale);
  const auto part = [&](const at::Tensor& flat) {
    return plain_rows(flat, begin - group.begin, length);
  };
  const at::Tensor& gradient = store_.home(run.unit, run.segment).gradient;
  at::Tensor copy = store_.compute_copy(run.unit, run.segment);
  if (copy.defined()) copy = plain_rows(copy, begin, length);
  ops::adamw_(part(parts[0]), plain_rows(gradient, begin, length), part(parts[1]), part(parts[2]),
              step, copy);
}

void AdamW::step(double learning_rate, double gradient_scale) {
  ++num_steps_;
  if (!walk_) {
    for (const Run& run : runs_) {
      const Moments& state = moments(run.unit, run.segment);
      const at::Tensor parts[] = {store_.home(run.unit, run.segment).value, state.exp_avg,
                                  state.exp_avg_sq};
      const SubGroup whole{run.unit, run.segment, 0, parts[0].numel(), {}};
      update(run, whole, parts, learning_rate, gradient_scale);
    }
    return;
  }
  // What loading, saving or evaluating looked at need not stay in memory.
  if (file_) file_->forget_pages();
  if (store_.file() != nullptr) store_.file()->forget_pages();
  walk_->run([&](const SubGroup& group, std::span<const at::Tensor> parts) {
    for (const Run& run : runs_) {
      if (run.unit != group.unit || run.segment != group.segment) continue;
      update(run, group, parts, learning_rate, gradient_scale);
    }
  });
}

void AdamW::rehearse() {
  if (walk_) walk_->run([](const SubGroup&, std::span<const at::Tensor>) {});
}

std::vector<StateTensor> AdamW::state() {
  std::vector<StateTensor> tensors;
  for (const auto& [unit, segment, piece] : shard::own_trained_pieces(store_)) {
    const auto add = [&, &piece = piece](const char* name, const at::Tensor& flat) {
      tensors.push_back({name, piece.parameter, piece.parameter->shape(), piece.tensor_begin,
                         flat.narrow(0, piece.shard_begin, piece.length),
                         /*rests_in_file=*/file_ != nullptr});
    };
    add("exp_avg", moments(unit, segment).exp_avg);
    add("exp_avg_sq", moments(unit, segment).exp_avg_sq);
  }
  return tensors;
}

AdamW::Moments& AdamW::moments(int unit, int segment) {
  return moments_[static_cast<size_t>(unit)][static_cast<size_t>(segment)];
}

}  // namespace strata::optim
