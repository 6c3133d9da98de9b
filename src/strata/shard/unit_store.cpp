#include "strata/shard/unit_store.h"

#include "strata/base/error.h"

namespace strata::shard {

// What is under way for one segment.
struct UnitStore::Visit {
  Home home;
  at::Tensor slot;  // compute type, [numel]
  at::Tensor wire;  // what the all-gather fills: the slot itself or a view of its tail
  std::unique_ptr<comm::Work> gathering;
  at::Tensor whole_gradient;  // fp32, [numel]
  at::Tensor reduced;         // where the reduce-scatter lands
  std::unique_ptr<comm::Work> reducing;
};

struct UnitStore::State {
  std::vector<Visit> visits;
  bool gather_started = false;
  bool gathered = false;
  bool gradients_open = false;
  bool first_micro_step = true;
  bool last_micro_step = true;
  bool reducing = false;
};

namespace {

// Widens bf16 values that occupy the second half of an fp32 buffer, front to back. Reading position
// 2n + 2i bytes stays at or ahead of writing position 4i, so one pass in order is safe and no
// second buffer is needed. Must not be split over threads.
void widen_bf16_in_place(at::Tensor& slot) {
  auto* out = static_cast<uint32_t*>(slot.data_ptr());
  const int64_t n = slot.numel();
  const uint16_t* in = static_cast<const uint16_t*>(slot.data_ptr()) + n;
  constexpr int64_t kChunk = 16;
  uint16_t chunk[kChunk];
  int64_t i = 0;
  for (; i + kChunk <= n; i += kChunk) {
    std::memcpy(chunk, in + i, sizeof(chunk));
    for (int64_t j = 0; j < kChunk; ++j) out[i + j] = static_cast<uint32_t>(chunk[j]) << 16;
  }
  for (; i < n; ++i) {
    const uint16_t value = in[i];
    out[i] = static_cast<uint32_t>(value) << 16;
  }
}

bool widens_in_place(at::ScalarType storage, at::ScalarType compute, at::Device device) {
  return storage == at::kBFloat16 && compute == at::kFloat && device.is_cpu();
}

}  // namespace

UnitStore::UnitStore(models::Model& model, comm::Mesh& mesh, const StoreOptions& options)
    : model_(model),
      mesh_(mesh),
      options_(options),
      partition_(partition_by_block(model, mesh.shard->size())),
      pool_(options.device) {
  for (const Unit& unit : partition_.units) {
    auto state = std::make_unique<State>();
    for (const Segment& segment : unit.segments) {
      Visit visit;
      const auto of_type = [&](at::ScalarType type) {
        return at::zeros({segment.shard_numel},
                         at::TensorOptions().dtype(type).device(options.device));
      };
      visit.home.value = of_type(segment.storage);
      if (segment.trainable) visit.home.gradient = of_type(at::kFloat);
      state->visits.push_back(std::move(visit));
    }
    states_.push_back(std::move(state));
  }
}

UnitStore::~UnitStore() = default;

Home& UnitStore::home(int u, int segment) {
  return states_[static_cast<size_t>(u)]->visits[static_cast<size_t>(segment)].home;
}

bool UnitStore::is_gathered(int u) const { return states_[static_cast<size_t>(u)]->gathered; }

bool UnitStore::has_open_gradients(int u) const {
  return states_[static_cast<size_t>(u)]->gradients_open;
}

void UnitStore::gather(int u) {
  State& state = *states_[static_cast<size_t>(u)];
  if (state.gather_started) {
    throw InternalError(
        "unit \"{}\": found a gather of a unit that is not sharded, expected a release "
        "before; report this as a bug",
        unit(u).name);
  }
  state.gather_started = true;
  const int group_size = mesh_.shard->size();
  for (size_t s = 0; s < state.visits.size(); ++s) {
    Visit& visit = state.visits[s];
    const Segment& segment = unit(u).segments[s];
    const bool same_type = segment.storage == options_.compute_type;
    if (group_size == 1 && same_type) {
      visit.slot = visit.home.value;
      continue;
    }
    visit.slot = pool_.acquire(segment.numel, options_.compute_type);
    if (same_type) {
      visit.gathering = mesh_.shard->all_gather(visit.slot, visit.home.value);
      continue;
    }
    if (widens_in_place(segment.storage, options_.compute_type, options_.device)) {
      visit.wire = visit.slot.view(at::kBFloat16).narrow(0, segment.numel, segment.numel);
      visit.gathering = mesh_.shard->all_gather(visit.wire, visit.home.value);
      continue;
    }
    // Trained master in fp32, compute in a narrower type: cast first, so that the wire carries the
    // narrow type.
    at::Tensor own =
        visit.slot.narrow(0, segment.shard_numel * mesh_.shard->rank(), segment.shard_numel);
    own.copy_(visit.home.value);
    visit.gathering = mesh_.shard->all_gather(visit.slot, own);
  }
}

void UnitStore::wait_gather(int u) {
  State& state = *states_[static_cast<size_t>(u)];
  if (state.gathered) return;
  if (!state.gather_started) {
    throw InternalError(
        "unit \"{}\": found a wait without a gather, expected a gather before; report "
        "this as a bug",
        unit(u).name);
  }
  for (Visit& visit : state.visits) {
    if (visit.gathering) {
      visit.gathering->wait();
      visit.gathering.reset();
    }
    if (visit.wire.defined()) {
      visit.wire = at::Tensor();
      widen_bf16_in_place(visit.slot);
    }
  }
  attach_values(u);
  state.gathered = true;
}

void UnitStore::attach_values(int u) {
  State& state = *states_[static_cast<size_t>(u)];
  for (size_t s = 0; s < state.visits.size(); ++s) {
    for (const Extent& extent : unit(u).segments[s].extents) {
      extent.parameter->attach_value(
          state.visits[s].slot.narrow(0, extent.begin, extent.parameter->numel()));
    }
  }
}

void UnitStore::release(int u) {
  State& state = *states_[static_cast<size_t>(u)];
  wait_gather(u);
  for (size_t s = 0; s < state.visits.size(); ++s) {
    Visit& visit = state.visits[s];
    for (const Extent& extent : unit(u).segments[s].extents) extent.parameter->detach_value();
    if (!visit.slot.is_same(visit.home.value)) pool_.give_back(std::move(visit.slot));
    visit.slot = at::Tensor();
  }
  state.gathered = false;
  state.gather_started = false;
}

void UnitStore::open_gradients(int u, bool first_micro_step) {
  State& state = *states_[static_cast<size_t>(u)];
  state.gradients_open = true;
  state.first_micro_step = first_micro_step;
  for (size_t s = 0; s < state.visits.size(); ++s) {
    const Segment& segment = unit(u).segments[s];
    if (!segment.trainable) continue;
    Visit& visit = state.visits[s];
    const bool own_home = mesh_.shard->size() == 1;
    visit.whole_gradient =
        own_home ? visit.home.gradient : pool_.acquire(segment.numel, at::kFloat);
    // In a home the earlier micro-steps' sum is added to; in a slot every micro-step starts anew.
    const bool overwrite = !own_home || first_micro_step;
    for (const Extent& extent : segment.extents) {
      extent.parameter->attach_grad(
          visit.whole_gradient.narrow(0, extent.begin, extent.parameter->numel()), overwrite);
    }
  }
}

void UnitStore::reduce(int u, bool last_micro_step) {
  State& state = *states_[static_cast<size_t>(u)];
  const bool own_home = mesh_.shard->size() == 1;
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
    if (own_home) {
      const bool shared = last_micro_step && mesh_.replicate->size() > 1;
      if (shared) visit.reducing = mesh_.replicate->all_reduce(visit.home.gradient);
      continue;
    }
    visit.reduced = state.first_micro_step ? visit.home.gradient
                                           : pool_.acquire(segment.shard_numel, at::kFloat);
    visit.reducing = mesh_.shard->reduce_scatter(visit.reduced, visit.whole_gradient);
  }
  state.gradients_open = false;
  state.last_micro_step = last_micro_step;
  state.reducing = true;
}

void UnitStore::wait_reduce(int u) {
  State& state = *states_[static_cast<size_t>(u)];
  if (!state.reducing) return;
  const bool own_home = mesh_.shard->size() == 1;
  for (Visit& visit : state.visits) {
    if (!visit.whole_gradient.defined()) continue;
    if (visit.reducing) {
      visit.reducing->wait();
      visit.reducing.reset();
    }
    if (!own_home) settle_reduced(visit, state.last_micro_step);
    visit.whole_gradient = at::Tensor();
  }
  state.reducing = false;
}

void UnitStore::settle_reduced(Visit& visit, bool last_micro_step) {
  if (!visit.reduced.is_same(visit.home.gradient)) {
    visit.home.gradient.add_(visit.reduced);
    pool_.give_back(std::move(visit.reduced));
  }
  visit.reduced = at::Tensor();
  pool_.give_back(std::move(visit.whole_gradient));
  if (last_micro_step && mesh_.replicate->size() > 1) {
    mesh_.replicate->all_reduce(visit.home.gradient)->wait();
  }
}

at::Tensor UnitStore::gather_stored(int u, int segment) {
  const Segment& layout = unit(u).segments[static_cast<size_t>(segment)];
  at::Tensor whole = pool_.acquire(layout.numel, layout.storage);
  mesh_.shard->all_gather(whole, home(u, segment).value)->wait();
  return whole;
}

}  // namespace strata::shard
