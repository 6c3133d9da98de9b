// The way of gradients: from backward through the reduction into the homes.
#include "strata/libtorch/memory_kind.h"
#include "strata/libtorch/plain_view.h"
#include "strata/shard/in_place.h"
#include "strata/shard/unit_visit.h"

namespace strata::shard {

bool UnitStore::has_own_gradients() const {
  return mesh_.shard->size() == 1 && !options_.homes_on_host;
}

void UnitStore::open_gradients(int u, bool first_micro_step) {
  State& state = require(u, "opening gradients", {Gradients::kNone});
  state.gradients = Gradients::kOpen;
  state.first_micro_step = first_micro_step;
  for (size_t s = 0; s < state.visits.size(); ++s) {
    const Segment& segment = unit(u).segments[s];
    if (!segment.trainable) continue;
    Visit& visit = state.visits[s];
    const bool own_home = has_own_gradients();
    visit.whole_gradient =
        own_home ? visit.home.gradient : pool_.acquire_turn(segment.numel, at::kFloat);
    // In a home the earlier micro-steps' sum is added to; in a slot every micro-step starts anew.
    const bool overwrite = !own_home || first_micro_step;
    for (const Extent& extent : segment.extents) {
      extent.parameter->attach_grad(
          plain_view(visit.whole_gradient, extent.begin, extent.parameter->shape()), overwrite);
    }
  }
}

void UnitStore::reduce(int u, bool last_micro_step) {
  State& state = require(u, "a reduction", {Gradients::kOpen});
  const bool own_home = has_own_gradients();
  for (size_t s = 0; s < state.visits.size(); ++s) {
    const Segment& segment = unit(u).segments[s];
    if (!segment.trainable) continue;
    Visit& visit = state.visits[s];
    for (const Extent& extent : segment.extents) {
      // A parameter that no block used has a zero gradient, not what an earlier visit left there.
      const bool must_clear =
          !extent.parameter->detach_grad() && (!own_home || state.first_micro_step);
      if (must_clear) {
        visit.whole_gradient.narrow(0, extent.begin, extent.parameter->numel()).zero_();
      }
    }
    if (!own_home) {
      start_reduce_scatter(visit, segment, state.first_micro_step);
    } else if (last_micro_step && mesh_.replicate->size() > 1) {
      visit.reducing = sum_over_replicas(visit);
    }
  }
  state.last_micro_step = last_micro_step;
  state.gradients = Gradients::kReducing;
}

void UnitStore::start_reduce_scatter(Visit& visit, const Segment& segment, bool first_micro_step) {
  if (options_.reduce_type == at::kFloat) {
    visit.reduced = first_micro_step && !options_.homes_on_host
                        ? visit.home.gradient
                        : pool_.acquire(segment.shard_numel, at::kFloat);
    visit.reducing = mesh_.shard->reduce_scatter(visit.reduced, visit.whole_gradient);
    return;
  }
  // Rounded in place: the other half of the buffer is free for the result.
  narrow_in_place(visit.whole_gradient, options_.reduce_type);
  visit.reduced =
      narrow_tail(visit.whole_gradient, options_.reduce_type).narrow(0, 0, segment.shard_numel);
  visit.reducing = mesh_.shard->reduce_scatter(
      visit.reduced, narrow_head(visit.whole_gradient, options_.reduce_type));
}

std::unique_ptr<comm::Work> UnitStore::sum_over_replicas(Visit& visit) {
  if (options_.reduce_type == at::kFloat) {
    return mesh_.replicate->all_reduce(visit.home.gradient);
  }
  visit.replica_buffer = pool_.acquire(visit.home.gradient.numel(), options_.reduce_type);
  visit.replica_buffer.copy_(visit.home.gradient);
  return mesh_.replicate->all_reduce(visit.replica_buffer);
}

void UnitStore::finish_replicas(Visit& visit) {
  if (!visit.replica_buffer.defined()) return;
  visit.home.gradient.copy_(visit.replica_buffer);
  pool_.give_back(std::move(visit.replica_buffer));
  visit.replica_buffer = at::Tensor();
}

void UnitStore::wait_reduce(int u) {
  State& state = require(u, "a wait for a reduction", {Gradients::kReducing, Gradients::kSumming});
  if (state.gradients == Gradients::kReducing) settle_reduce(u);
  for (Visit& visit : state.visits) {
    if (!visit.summing) continue;
    visit.summing->wait();
    visit.summing.reset();
    finish_replicas(visit);
  }
  state.gradients = Gradients::kNone;
}

void UnitStore::settle_reduce(int u) {
  State& state = require(u, "a wait for the shard group", {Gradients::kReducing});
  const bool own_home = has_own_gradients();
  for (Visit& visit : state.visits) {
    if (!visit.whole_gradient.defined()) continue;
    if (visit.reducing) {
      visit.reducing->wait();
      visit.reducing.reset();
    }
    if (own_home) {
      finish_replicas(visit);
    } else {
      settle_reduced(visit, state);
    }
    visit.whole_gradient = at::Tensor();
  }
  state.gradients = Gradients::kSumming;
}

void UnitStore::settle_reduced(Visit& visit, const State& state) {
  const bool is_own_buffer = options_.reduce_type == at::kFloat;
  if (options_.homes_on_host) {
    // In 16 bits what arrived lies in the whole gradient's own buffer, which goes back below.
    at::Tensor buffer = visit.reduced;
    if (!is_own_buffer) {
      buffer = pool_.acquire(visit.reduced.numel(), at::kFloat);
      buffer.copy_(visit.reduced);
    }
    host_gradients_.send(visit.home.gradient, std::move(buffer), state.first_micro_step);
  } else if (!is_own_buffer && state.first_micro_step) {
    visit.home.gradient.copy_(visit.reduced);
  } else if (!visit.reduced.is_same(visit.home.gradient)) {
    visit.home.gradient.add_(visit.reduced);
    if (is_own_buffer) pool_.give_back(std::move(visit.reduced));
  }
  visit.reduced = at::Tensor();
  pool_.give_back(std::move(visit.whole_gradient));
  if (state.last_micro_step && mesh_.replicate->size() > 1) {
    finish_transfers();
    visit.summing = sum_over_replicas(visit);
  }
}

at::Tensor UnitStore::make_staging() const {
  int64_t largest = 0;
  for (const Unit& unit : partition_.units) {
    for (const Segment& segment : unit.segments) {
      if (segment.trainable) largest = std::max(largest, segment.shard_numel);
    }
  }
  const MemoryScope scope(MemoryKind::kGradients);
  return home_memory(largest, at::kFloat);
}

}  // namespace strata::shard
