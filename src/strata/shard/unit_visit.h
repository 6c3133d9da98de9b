// What is under way for the units of a store: gathers into slots, gradients on their way home.
// Part of the store itself; nobody else includes it.
#pragma once

#include "strata/shard/unit_store.h"

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
  // This rank's part of the slot holds what the home does, as an update wrote it.
  bool copy_is_current = false;
  StreamMark filled;          // the gather stream has enqueued everything of this gather
  at::Tensor whole_gradient;  // fp32, [numel]
  at::Tensor reduced;         // where the reduce-scatter lands, unless in the home
  at::Tensor replica_buffer;  // 16-bit gradient on its way between replicas
  std::unique_ptr<comm::Work> reducing;
  std::unique_ptr<comm::Work> summing;  // over replicas, after the reduce-scatter
};

struct UnitStore::State {
  std::vector<Visit> visits;
  Residence residence = Residence::kSharded;
  Gradients gradients = Gradients::kNone;
  // State of the gradients, while there are any.
  bool first_micro_step = true;
  bool last_micro_step = true;
};

}  // namespace strata::shard
