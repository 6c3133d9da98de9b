#include "strata/shard/unit_store.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "strata/base/error.h"
#include "strata/comm/liveness.h"
#include "strata/libtorch/cuda_build.h"
#include "strata/libtorch/memory_kind.h"
#include "strata/libtorch/plain_view.h"
#include "strata/libtorch/planned_device.h"
#include "strata/shard/in_place.h"
#include "strata/shard/pinned_memory.h"
#include "strata/shard/unit_visit.h"

namespace strata::shard {

uint64_t parameter_file_bytes(const Partition& partition) {
  uint64_t bytes = 0;
  for (const Unit& unit : partition.units) {
    for (const Segment& segment : unit.segments) {
      bytes += HomeFile::size_bytes(segment.shard_numel, segment.storage);
    }
  }
  return bytes;
}

namespace {

// Loading writes every byte of a weight's codes: only what lies between weights is cleared, since
// the first touch of so many pages would cost more than quantising what comes there.
at::Tensor room_for_codes(const Segment& segment, int rank, const at::TensorOptions& options) {
  at::Tensor room = at::empty({segment.shard_numel}, options);
  int64_t end = 0;  // of the weight before
  for (const Piece& piece : pieces_of(segment, rank)) {
    room.narrow(0, end, piece.shard_begin - end).zero_();
    end = piece.shard_begin + piece.length;
  }
  room.narrow(0, end, segment.shard_numel - end).zero_();
  return room;
}

}  // namespace

UnitStore::UnitStore(models::Model& model, comm::Mesh& mesh, const StoreOptions& options)
    : model_(model),
      mesh_(mesh),
      options_(options),
      partition_(partition_model(model, mesh.shard->size(), options.wrap)),
      pool_(options.device),
      read_pool_(at::kCPU, aligned_buffer),
      gather_stream_(options.device),
      host_gradients_(options.device, pool_, [this] { return make_staging(); }) {
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
        const bool is_pinned = options.homes_on_host && options.device.is_cuda();
        if (type != at::kByte || is_pinned) return home_memory(segment.shard_numel, type);
        const auto where = at::TensorOptions().dtype(type).device(home_device());
        return room_for_codes(segment, mesh.shard->rank(), where);
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

at::Tensor UnitStore::home_memory(int64_t numel, at::ScalarType type) const {
  if constexpr (kHasCuda) {
    if (options_.homes_on_host && options_.device.is_cuda()) return pinned_zeros(numel, type);
  }
  return at::zeros({numel}, at::TensorOptions().dtype(type).device(home_device()));
}

UnitStore::~UnitStore() {
  // No transfer may outlive the buffers.
  if (file_) file_->drain();
}

Home& UnitStore::home(int u, int segment) {
  Visit& visit = state_of(u).visits[static_cast<size_t>(segment)];
  visit.copy_is_current = false;
  return visit.home;
}

bool UnitStore::has_open_gradients(int u) const {
  return states_[static_cast<size_t>(u)]->gradients == Gradients::kOpen;
}

static const char* name_of(Residence residence) {
  static constexpr const char* kNames[] = {"sharded", "gathering", "gathered", "in parts"};
  return kNames[static_cast<size_t>(residence)];
}

static const char* name_of(Gradients gradients) {
  static constexpr const char* kNames[] = {"no gradients", "open gradients", "gradients reducing",
                                           "gradients summing"};
  return kNames[static_cast<size_t>(gradients)];
}

// A schedule of the wrong order would otherwise die in libtorch, or train on wrong numbers.
template <typename State>
static void require_one_of(const Unit& unit, const char* call, State found,
                           std::initializer_list<State> expected) {
  if (std::ranges::find(expected, found) != expected.end()) return;
  std::vector<const char*> names;
  for (const State state : expected) names.push_back(name_of(state));
  throw InternalError("unit \"{}\": found {} at {}, expected {}; report this as a bug", unit.name,
                      name_of(found), call, fmt::join(names, " or "));
}

UnitStore::State& UnitStore::require(int u, const char* call,
                                     std::initializer_list<Residence> expected) {
  require_one_of(unit(u), call, state_of(u).residence, expected);
  return state_of(u);
}

UnitStore::State& UnitStore::require(int u, const char* call,
                                     std::initializer_list<Gradients> expected) {
  require_one_of(unit(u), call, state_of(u).gradients, expected);
  return state_of(u);
}

static bool keeps_type(const Segment& segment) {
  return segment.storage == at::kByte || segment.keeps_type;
}

at::ScalarType UnitStore::slot_type(const Segment& segment) const {
  return keeps_type(segment) ? segment.storage : options_.compute_type;
}

at::ScalarType UnitStore::wire_type(const Segment& segment) const {
  if (keeps_type(segment)) return segment.storage;
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

void UnitStore::start_read(int u) {
  for (Visit& visit : state_of(u).visits) start_read(visit);
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
  State& state = from_parts ? require(u, "a gather from parts", {Residence::kInParts})
                            : require(u, "a gather", {Residence::kSharded});
  state.residence = Residence::kGathering;
  if (!from_parts) start_read(u);
  for (size_t s = 0; s < state.visits.size(); ++s) {
    Visit& visit = state.visits[s];
    const Segment& segment = unit(u).segments[s];
    if (is_own_slot(segment)) {
      visit.slot = resting_value(visit);
      continue;
    }
    visit.slot = pool_.acquire_turn(segment.numel, slot_type(segment));
    // After what the slot served for before, beside the block that computes.
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
  State& state = require(u, "a refresh", {Residence::kGathering, Residence::kGathered});
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
  state.residence = Residence::kGathering;
}

at::Tensor UnitStore::compute_copy(int u, int segment) {
  State& state = state_of(u);
  const Segment& layout = unit(u).segments[static_cast<size_t>(segment)];
  const at::ScalarType type = slot_type(layout);
  const bool is_converted = layout.trainable && layout.storage == at::kFloat && is_16_bit(type) &&
                            !rests_elsewhere() && file_ == nullptr;
  if (!is_converted || state.residence != Residence::kGathered) return {};
  // Once an update, however many pieces it has.
  if (layout.extents.back().parameter->is_gathered()) {
    for (const Extent& extent : layout.extents) extent.parameter->detach_value();
  }
  Visit& visit = state.visits[static_cast<size_t>(segment)];
  visit.copy_is_current = true;
  return own_part(visit.slot, layout);
}

at::Tensor UnitStore::own_part(const at::Tensor& whole, const Segment& segment) const {
  return whole.narrow(0, segment.shard_numel * mesh_.shard->rank(), segment.shard_numel);
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
  const at::Tensor own = own_part(wire, segment);
  const bool is_current = std::exchange(visit.copy_is_current, false);
  if (segment.storage != type && rests_elsewhere()) {
    convert_on_device(own, resting);
  } else if (!is_current) {
    own.copy_(resting, /*non_blocking=*/rests_elsewhere());
  }
  visit.gathering = mesh_.shard->all_gather(wire, own);
}

void UnitStore::wait_gather(int u) {
  State& state = require(u, "a wait for a gather", {Residence::kGathering, Residence::kGathered});
  if (state.residence == Residence::kGathered) return;
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
  state.residence = Residence::kGathered;
}

void UnitStore::attach_values(int u) {
  const std::vector<Visit>& visits = state_of(u).visits;
  for (size_t s = 0; s < visits.size(); ++s) {
    for (const Extent& extent : unit(u).segments[s].extents) {
      nn::Parameter& parameter = *extent.parameter;
      const int64_t bytes = parameter.stored_numel();  // of codes
      parameter.attach_value(plain_view(
          visits[s].slot, extent.begin,
          parameter.quantization() ? at::IntArrayRef(bytes) : at::IntArrayRef(parameter.shape())));
    }
  }
}

void UnitStore::release(int u, bool keep_part) {
  State& state = require(u, "a release", {Residence::kGathering, Residence::kGathered});
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
    visit.copy_is_current = false;
  }
  state.residence = keep_part ? Residence::kInParts : Residence::kSharded;
}

void UnitStore::with_stored(int u, int segment, const std::function<void(const at::Tensor&)>& use) {
  const at::Tensor resting = home(u, segment).value;
  if (mesh_.shard->size() == 1) {
    use(resting);
  } else {
    const Segment& layout = unit(u).segments[static_cast<size_t>(segment)];
    at::Tensor whole = pool_.acquire_turn(layout.numel, layout.storage);
    try {
      mesh_.shard->all_gather(whole, rests_elsewhere() ? on_device(resting) : resting)->wait();
      use(whole);
      // `use` has waited for what came.
      comm::require_alive(*mesh_.shard);
    } catch (...) {  // whoever asks again finds the pool as it was
      pool_.give_back(std::move(whole));
      throw;
    }
    pool_.give_back(std::move(whole));
  }
  // Or an export would leave all of it in memory, segment by segment.
  if (file_) file_->forget_pages();
}

}  // namespace strata::shard
