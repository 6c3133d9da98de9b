#include "strata/shard/unit_store.h"

#include "strata/base/error.h"
#include "strata/libtorch/cuda_build.h"
#include "strata/libtorch/memory_kind.h"
#include "strata/libtorch/planned_device.h"
#include "strata/shard/in_place.h"
#include "strata/shard/pinned_memory.h"

namespace strata::shard {

// What is under way for one segment.
struct UnitStore::Visit {
  Home home;
  // A home in a file: what is being read for the next gather, and what was read for this one. A
  // unit may be read ahead while an earlier visit still holds its values.
  at::Tensor next_read, read;
  std::optional<HomeFile::Ticket> reading;
  at::Tensor slot;      // slot_type(), [numel]
  bool widens = false;  // the all-gather fills the slot's tail with 16-bit values
  at::Tensor part;  // of the slot's type, [numel / part ranks]: kept between forward and backward
  at::Tensor in_flight;  // the part that the all-gather reads
  std::unique_ptr<comm::Work> gathering;
  StreamMark filled;          // the gather stream has enqueued everything of this gather
  at::Tensor whole_gradient;  // fp32, [numel]
  at::Tensor reduced;         // where the reduce-scatter lands, unless in the home
  at::Tensor replica_buffer;  // 16-bit gradient on its way between replicas
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

uint64_t parameter_file_bytes(const Partition& partition) {
  uint64_t bytes = 0;
  for (const Unit& unit : partition.units) {
    for (const Segment& segment : unit.segments) {
      bytes += HomeFile::size_bytes(segment.shard_numel, segment.storage);
    }
  }
  return bytes;
}

UnitStore::UnitStore(models::Model& model, comm::Mesh& mesh, const StoreOptions& options)
    : model_(model),
      mesh_(mesh),
      options_(options),
      partition_(partition_model(model, mesh.shard->size(), options.wrap)),
      pool_(options.device),
      read_pool_(at::kCPU, aligned_buffer),
      gather_stream_(options.device),
      host_stream_(options.device) {
  if (options_.param_type == at::ScalarType::Undefined) options_.param_type = options.compute_type;
  // Before anything is allocated: the disk may be full.
  if (options.parameter_files.is_on()) {
    file_ = std::make_unique<HomeFile>(options.parameter_files, "parameters",
                                       parameter_file_bytes(partition_));
  }
  for (const Unit& unit : partition_.units) {
    auto state = std::make_unique<State>();
    for (const Segment& segment : unit.segments) {
      Visit visit;
      const auto of_type = [&](at::ScalarType type, MemoryKind kind) {
        const MemoryScope scope(kind);
        if constexpr (kHasCuda) {
          if (options.homes_on_host && options.device.is_cuda()) {
            return pinned_zeros(segment.shard_numel, type);
          }
        }
        return at::zeros({segment.shard_numel},
                         at::TensorOptions().dtype(type).device(home_device()));
      };
      if (file_) {
        visit.home.region = file_->add(segment.shard_numel, segment.storage);
        visit.home.value = file_->view(*visit.home.region);
      } else {
        visit.home.value = of_type(segment.storage, MemoryKind::kParameters);
      }
      if (segment.trainable) visit.home.gradient = of_type(at::kFloat, MemoryKind::kGradients);
      state->visits.push_back(std::move(visit));
    }
    states_.push_back(std::move(state));
  }
}

UnitStore::~UnitStore() {
  // No transfer may outlive the buffers.
  if (file_) file_->drain();
}

Home& UnitStore::home(int u, int segment) {
  return states_[static_cast<size_t>(u)]->visits[static_cast<size_t>(segment)].home;
}

bool UnitStore::is_gathered(int u) const { return states_[static_cast<size_t>(u)]->gathered; }

bool UnitStore::has_open_gradients(int u) const {
  return states_[static_cast<size_t>(u)]->gradients_open;
}

at::ScalarType UnitStore::slot_type(const Segment& segment) const {
  return segment.storage == at::kByte ? at::kByte : options_.compute_type;
}

at::ScalarType UnitStore::wire_type(const Segment& segment) const {
  if (segment.storage == at::kByte) return at::kByte;
  const at::ScalarType compute = options_.compute_type;
  if (compute != at::kFloat || is_for_cuda(options_.device)) return compute;
  if (is_16_bit(segment.storage)) return segment.storage;
  return segment.trainable && is_16_bit(options_.param_type) ? options_.param_type : compute;
}

bool UnitStore::is_own_slot(const Segment& segment) const {
  const at::ScalarType type = slot_type(segment);
  return mesh_.shard->size() == 1 && segment.storage == type && wire_type(segment) == type &&
         !rests_elsewhere();
}

bool UnitStore::rests_elsewhere() const {
  return options_.homes_on_host || (is_for_cuda(options_.device) && file_ != nullptr);
}

at::Tensor UnitStore::on_device(const at::Tensor& resting) const {
  // Of a plan both are on device meta, and the copy is memory all the same.
  if (options_.device.is_meta()) return at::empty_like(resting);
  return resting.to(options_.device, /*non_blocking=*/true);
}

void UnitStore::convert_on_device(const at::Tensor& own, const at::Tensor& resting) const {
  // Part by part: the wide copy of a whole shard would be the largest thing there. Parts follow one
  // another in a stream and take the same memory.
  const int64_t block = conversion_block(options_.device);
  for (int64_t begin = 0; begin < own.numel(); begin += block) {
    const int64_t length = std::min(block, own.numel() - begin);
    own.narrow(0, begin, length).copy_(on_device(resting.narrow(0, begin, length)));
  }
}

bool UnitStore::has_own_gradients() const {
  return mesh_.shard->size() == 1 && !options_.homes_on_host;
}

void UnitStore::start_read(int u) {
  for (Visit& visit : states_[static_cast<size_t>(u)]->visits) start_read(visit);
}

void UnitStore::start_read(Visit& visit) {
  if (!visit.home.region || visit.reading) return;
  visit.next_read = read_pool_.acquire(visit.home.region->numel, visit.home.region->type);
  visit.reading = file_->read(*visit.home.region, 0, visit.next_read);
}

at::Tensor UnitStore::resting_value(Visit& visit) {
  if (!visit.home.region) return visit.home.value;
  start_read(visit);
  const HomeFile::Ticket ticket = *visit.reading;
  visit.reading.reset();
  file_->wait(ticket);
  visit.read = std::move(visit.next_read);
  visit.next_read = at::Tensor();
  return visit.read;
}

void UnitStore::gather(int u, bool from_parts) {
  State& state = *states_[static_cast<size_t>(u)];
  if (state.gather_started) {
    throw InternalError(
        "unit \"{}\": found a gather of a unit that is not sharded, expected a release "
        "before; report this as a bug",
        unit(u).name);
  }
  state.gather_started = true;
  if (!from_parts) start_read(u);
  for (size_t s = 0; s < state.visits.size(); ++s) {
    Visit& visit = state.visits[s];
    const Segment& segment = unit(u).segments[s];
    if (is_own_slot(segment)) {
      visit.slot = resting_value(visit);
      continue;
    }
    visit.slot = pool_.acquire_turn(segment.numel, slot_type(segment));
    // Behind what the slot served for before, beside the block that computes.
    const SideStream::Scope beside(gather_stream_);
    if (from_parts) {
      visit.in_flight = std::move(visit.part);
      visit.part = at::Tensor();
      visit.gathering = mesh_.part->all_gather(visit.slot, visit.in_flight);
    } else {
      start_gather(visit, segment);
    }
    visit.filled = StreamMark::now(options_.device);
  }
}

void UnitStore::refresh(int u) {
  State& state = *states_[static_cast<size_t>(u)];
  wait_gather(u);
  for (size_t s = 0; s < state.visits.size(); ++s) {
    Visit& visit = state.visits[s];
    const Segment& segment = unit(u).segments[s];
    if (!segment.trainable || is_own_slot(segment)) continue;
    for (const Extent& extent : segment.extents) extent.parameter->detach_value();
    const SideStream::Scope beside(gather_stream_);
    start_gather(visit, segment);
    visit.filled = StreamMark::now(options_.device);
  }
  state.gathered = false;
}

void UnitStore::start_gather(Visit& visit, const Segment& segment) {
  const at::ScalarType type = wire_type(segment);
  const at::Tensor resting = resting_value(visit);
  visit.widens = type != slot_type(segment);
  const at::Tensor wire = visit.widens ? narrow_tail(visit.slot, type) : visit.slot;
  if (segment.storage == type && !rests_elsewhere()) {
    visit.gathering = mesh_.shard->all_gather(wire, resting);
    return;
  }
  // Cast first, so that the wire carries the narrow type; from host memory, on the device.
  at::Tensor own = wire.narrow(0, segment.shard_numel * mesh_.shard->rank(), segment.shard_numel);
  if (segment.storage != type && rests_elsewhere()) {
    convert_on_device(own, resting);
  } else {
    own.copy_(resting, /*non_blocking=*/rests_elsewhere());
  }
  visit.gathering = mesh_.shard->all_gather(wire, own);
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
  for (size_t s = 0; s < state.visits.size(); ++s) {
    Visit& visit = state.visits[s];
    visit.filled.hold_up_stream();
    if (visit.gathering) {
      visit.gathering->wait();
      visit.gathering.reset();
    }
    if (visit.in_flight.defined()) {
      pool_.give_back(std::move(visit.in_flight));
      visit.in_flight = at::Tensor();
    }
    if (visit.widens) widen_in_place(visit.slot, wire_type(unit(u).segments[s]));
    visit.widens = false;
    if (visit.read.defined() && !visit.slot.is_same(visit.read)) {
      read_pool_.give_back(std::move(visit.read));
      visit.read = at::Tensor();
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
          state.visits[s].slot.narrow(0, extent.begin, extent.parameter->stored_numel()));
    }
  }
}

void UnitStore::release(int u, bool keep_part) {
  State& state = *states_[static_cast<size_t>(u)];
  wait_gather(u);
  for (size_t s = 0; s < state.visits.size(); ++s) {
    Visit& visit = state.visits[s];
    for (const Extent& extent : unit(u).segments[s].extents) extent.parameter->detach_value();
    const bool is_own = is_own_slot(unit(u).segments[s]);
    if (keep_part && !is_own) {
      const int64_t length = visit.slot.numel() / mesh_.part->size();
      visit.part = pool_.acquire(length, visit.slot.scalar_type());
      visit.part.copy_(visit.slot.narrow(0, length * mesh_.part->rank(), length));
    }
    if (!is_own) pool_.give_back(std::move(visit.slot));
    if (visit.read.defined()) read_pool_.give_back(std::move(visit.read));
    visit.read = at::Tensor();
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
    const bool own_home = has_own_gradients();
    visit.whole_gradient =
        own_home ? visit.home.gradient : pool_.acquire_turn(segment.numel, at::kFloat);
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
  state.gradients_open = false;
  state.last_micro_step = last_micro_step;
  state.reducing = true;
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
  State& state = *states_[static_cast<size_t>(u)];
  if (!state.reducing) return;
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
  state.reducing = false;
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
    send_to_host(visit.home.gradient, std::move(buffer), state.first_micro_step);
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
    sum_over_replicas(visit)->wait();
    finish_replicas(visit);
  }
}

void UnitStore::send_to_host(const at::Tensor& home, at::Tensor buffer, bool overwrite) {
  // A buffer whose copy is under way may be used again behind it.
  for (Leaving& leaving : leaving_) {
    leaving.left.hold_up_stream();
    pool_.give_back(std::move(leaving.buffer));
  }
  leaving_.clear();
  if (!overwrite) {
    if (!buffer.is_meta()) home.add_(buffer.cpu());
    pool_.give_back(std::move(buffer));
    return;
  }
  const SideStream::Scope beside(host_stream_);
  home.copy_(buffer, /*non_blocking=*/true);
  leaving_.push_back({std::move(buffer), StreamMark::now(options_.device)});
}

void UnitStore::finish_transfers() {
  for (Leaving& leaving : leaving_) {
    leaving.left.wait_on_host();
    pool_.give_back(std::move(leaving.buffer));
  }
  leaving_.clear();
}

at::Tensor UnitStore::gather_stored(int u, int segment) {
  const Segment& layout = unit(u).segments[static_cast<size_t>(segment)];
  at::Tensor whole = pool_.acquire_turn(layout.numel, layout.storage);
  const at::Tensor resting = home(u, segment).value;
  mesh_.shard->all_gather(whole, rests_elsewhere() ? on_device(resting) : resting)->wait();
  // Or an export would leave all of it in memory, segment by segment.
  if (file_) file_->forget_pages();
  return whole;
}

}  // namespace strata::shard
