#include "strata/shard/schedule.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "strata/base/error.h"

namespace strata::shard {
namespace {

// A step that computes, and the units whose values it reads.
struct Computation {
  Step step;
  std::vector<int> units;
  bool is_backward = false;
};

int first_trained_block(const ChainShape& shape) {
  const auto found = std::find(shape.block_trains.begin(), shape.block_trains.end(), true);
  return static_cast<int>(found - shape.block_trains.begin());
}

// The number of blocks before this one that a backward pass runs through and that have something
// to recompute.
int place_among_recomputed(int block, const ChainShape& shape) {
  const auto begin = shape.backward_reads_parameters.begin();
  return static_cast<int>(
      std::count(begin + std::min(block, first_trained_block(shape)), begin + block, true));
}

// A block before the head would be run again at once, so it keeps its activations: the peak is the
// same as during that, and a forward pass of one block is saved.
Keep keep_of(int block, const ChainShape& shape, const ScheduleOptions& options) {
  const int head = static_cast<int>(shape.block_units.size()) - 1;
  const bool has_nothing_to_recompute =
      !shape.backward_reads_parameters[static_cast<size_t>(block)];
  if (has_nothing_to_recompute) return Keep::kActivations;
  const bool is_behind = place_among_recomputed(block, shape) >= options.checkpointed_blocks;
  switch (is_behind ? options.checkpointing_behind : options.activation_checkpointing) {
    case Checkpointing::kNone:
      return Keep::kActivations;
    case Checkpointing::kSelective:
      return Keep::kSelected;
    case Checkpointing::kAttention:
      return block == head - 1 ? Keep::kActivations : Keep::kAttention;
    case Checkpointing::kFull:
      return block == head - 1 ? Keep::kActivations : Keep::kInput;
  }
  throw InternalError("schedule: found an unknown kind of checkpointing; report this as a bug");
}

std::vector<Computation> training_computations(const ChainShape& shape,
                                               const ScheduleOptions& options) {
  const int head = static_cast<int>(shape.block_units.size()) - 1;
  const int first = first_trained_block(shape);
  const auto units = [&](int block) { return shape.block_units[static_cast<size_t>(block)]; };
  std::vector<Computation> computations;
  for (int b = 0; b < head; ++b) {
    const Keep keep = b < first ? Keep::kNothing : keep_of(b, shape, options);
    computations.push_back({{Action::kForward, b, keep}, units(b), false});
  }
  computations.push_back({{Action::kLoss, head, Keep::kActivations}, units(head), true});
  for (int b = head - 1; b >= first; --b) {
    const bool reads = shape.backward_reads_parameters[static_cast<size_t>(b)];
    computations.push_back({{Action::kBackward, b, keep_of(b, shape, options)},
                            reads ? units(b) : std::vector<int>{},
                            true});
  }
  return computations;
}

std::vector<Computation> evaluation_computations(const ChainShape& shape, int first_block) {
  std::vector<Computation> computations;
  for (int b = first_block; b < static_cast<int>(shape.block_units.size()); ++b) {
    computations.push_back(
        {{Action::kForward, b, Keep::kNothing}, shape.block_units[static_cast<size_t>(b)], false});
  }
  return computations;
}

// How many computations ahead units are gathered.
int depth_ahead(bool backward, const ScheduleOptions& options) {
  const bool ahead =
      backward ? options.backward_prefetch == BackwardPrefetch::kPre : options.forward_prefetch;
  return ahead ? options.slots - 1 : 0;
}

// residents[i]: units that are gathered while computation i runs. A unit is there for the
// computation and for those before it that prefetch it; without resharding also between its first
// and last use.
std::vector<std::set<int>> residents(const std::vector<Computation>& computations,
                                     const ScheduleOptions& options) {
  const int n = static_cast<int>(computations.size());
  std::vector<std::set<int>> resident(static_cast<size_t>(n));
  for (int use = 0; use < n; ++use) {
    const int ahead = depth_ahead(computations[static_cast<size_t>(use)].is_backward, options);
    for (int at = std::max(0, use - ahead); at <= use; ++at) {
      const auto& units = computations[static_cast<size_t>(use)].units;
      resident[static_cast<size_t>(at)].insert(units.begin(), units.end());
    }
  }
  if (options.reshard_after_forward) return resident;
  std::set<int> seen_later;
  std::vector<std::set<int>> later(static_cast<size_t>(n));
  for (int at = n - 1; at >= 0; --at) {
    later[static_cast<size_t>(at)] = seen_later;
    seen_later.insert(resident[static_cast<size_t>(at)].begin(),
                      resident[static_cast<size_t>(at)].end());
  }
  for (int at = 1; at < n; ++at) {
    for (int u : resident[static_cast<size_t>(at - 1)]) {
      if (later[static_cast<size_t>(at)].count(u)) resident[static_cast<size_t>(at)].insert(u);
    }
  }
  return resident;
}

// Units whose gradient is complete once `block` has run backward: those it trains and no earlier
// block uses (I3).
std::vector<int> completed_units(int block, const ChainShape& shape) {
  std::vector<int> completed;
  for (int u : shape.block_units[static_cast<size_t>(block)]) {
    if (!shape.unit_trains[static_cast<size_t>(u)]) continue;
    bool used_earlier = false;
    for (int b = 0; b < block; ++b) {
      const auto& units = shape.block_units[static_cast<size_t>(b)];
      // An earlier block that is not run backward adds nothing to the gradient.
      const bool runs_backward = b >= first_trained_block(shape);
      used_earlier |= runs_backward && std::binary_search(units.begin(), units.end(), u);
    }
    if (!used_earlier) completed.push_back(u);
  }
  return completed;
}

// Puts gathers, releases and reductions around the computations.
class Placement {
 public:
  Placement(const std::vector<Computation>& computations, const ChainShape& shape,
            const ScheduleOptions& options, bool reduces)
      : computations_(computations), shape_(shape), options_(options), reduces_(reduces) {
    if (!options.resident) resident_ = residents(computations, options);
  }

  Schedule place() {
    for (size_t i = 0; i < computations_.size(); ++i) {
      if (!options_.resident) {
        // Own units first, then those fetched ahead.
        gather_all(computations_[i].units);
        gather_all(resident_[i]);
      }
      schedule_.push_back(computations_[i].step);
      finish(i);
    }
    return std::move(schedule_);
  }

 private:
  template <typename Units>
  void gather_all(const Units& units) {
    for (int u : units) {
      if (!now_.insert(u).second) continue;
      schedule_.push_back({Action::kGather, u, Keep::kNothing, parts_.erase(u) > 0});
    }
  }

  void finish(size_t i) {
    const bool gathers_between = options_.backward_prefetch == BackwardPrefetch::kPost &&
                                 computations_[i].is_backward && !options_.resident;
    if (!gathers_between) reduce(i);
    if (!options_.resident) release(i);
    if (!gathers_between) return;
    if (i + 1 < computations_.size()) gather_all(computations_[i + 1].units);
    reduce(i);
  }

  void reduce(size_t i) {
    if (!reduces_ || !computations_[i].is_backward) return;
    for (int u : completed_units(computations_[i].step.index, shape_)) {
      schedule_.push_back({Action::kReduce, u});
    }
  }

  void release(size_t i) {
    for (auto u = now_.begin(); u != now_.end();) {
      if (i + 1 < computations_.size() && resident_[i + 1].count(*u) > 0) {
        ++u;
        continue;
      }
      const bool part = options_.reshard_to_part && is_used_after(i, *u);
      if (part) parts_.insert(*u);
      schedule_.push_back({Action::kRelease, *u, Keep::kNothing, part});
      u = now_.erase(u);
    }
  }

  bool is_used_after(size_t i, int u) const {
    return std::any_of(computations_.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                       computations_.end(), [&](const Computation& c) {
                         return std::find(c.units.begin(), c.units.end(), u) != c.units.end();
                       });
  }

  const std::vector<Computation>& computations_;
  const ChainShape& shape_;
  const ScheduleOptions& options_;
  bool reduces_;
  std::vector<std::set<int>> resident_;
  std::set<int> now_;
  std::set<int> parts_;  // released, with a part kept
  Schedule schedule_;
};

// A unit is read while the units that are gathered before it, `ahead` of them, are gathered and
// compute. What is gathered from parts is stored in memory.
Schedule place_reads(const Schedule& schedule, int ahead) {
  const auto reads = [](const Step& step) { return step.action == Action::kGather && !step.part; };
  std::vector<int> order;
  for (const Step& step : schedule) {
    if (reads(step)) order.push_back(step.index);
  }
  Schedule result;
  size_t next_read = 0, num_gathered = 0;
  for (const Step& step : schedule) {
    if (reads(step)) {
      const size_t last = std::min(num_gathered + static_cast<size_t>(ahead), order.size() - 1);
      for (; next_read <= last; ++next_read) result.push_back({Action::kRead, order[next_read]});
      ++num_gathered;
    }
    result.push_back(step);
  }
  return result;
}

// An input leaves while its block runs forward, and comes back while the block after it runs
// backward. Not the input that stays where it is as the output of a block that keeps its
// activations, as a trained embedding does; the first block has none.
Schedule place_offloads(const Schedule& schedule) {
  std::set<int> moved;
  Keep before = Keep::kActivations;
  for (const Step& step : schedule) {
    if (step.action != Action::kForward) continue;
    if (runs_again(step.keep) && before != Keep::kActivations) moved.insert(step.index);
    before = step.keep;
  }
  const auto moves = [&](const Step& step) { return moved.contains(step.index); };
  std::vector<int> order;  // of the backward pass
  for (const Step& step : schedule) {
    if (step.action == Action::kBackward && moves(step)) order.push_back(step.index);
  }
  Schedule result;
  size_t num_fetched = 0, num_used = 0;
  for (const Step& step : schedule) {
    if (step.action == Action::kForward && moves(step)) {
      result.push_back({Action::kOffload, step.index});
    }
    if (step.action == Action::kBackward) {
      if (moves(step)) ++num_used;
      // Its own, where nothing ran backward before, and the next.
      for (; num_fetched < std::min(num_used + 1, order.size()); ++num_fetched) {
        result.push_back({Action::kFetch, order[num_fetched]});
      }
    }
    result.push_back(step);
  }
  return result;
}

Schedule placed(const std::vector<Computation>& computations, const ChainShape& shape,
                const ScheduleOptions& options, bool reduces) {
  Schedule schedule = Placement(computations, shape, options, reduces).place();
  if (options.offload_activations) schedule = place_offloads(schedule);
  return options.read_ahead > 0 ? place_reads(schedule, options.read_ahead) : schedule;
}

void check(const ChainShape& shape) {
  const size_t blocks = shape.block_units.size();
  if (blocks < 2 || shape.block_trains.size() != blocks ||
      shape.backward_reads_parameters.size() != blocks) {
    throw InternalError(
        "schedule: found {} blocks, expected at least two described alike; report "
        "this as a bug",
        blocks);
  }
}

}  // namespace

Schedule training_schedule(const ChainShape& shape, const ScheduleOptions& options) {
  check(shape);
  if (first_trained_block(shape) == static_cast<int>(shape.block_units.size())) {
    throw ConfigError(
        "training: found no trainable parameter, expected at least one; attach an "
        "adapter or train the whole model");
  }
  return placed(training_computations(shape, options), shape, options, /*reduces=*/true);
}

Schedule evaluation_schedule(const ChainShape& shape, const ScheduleOptions& options,
                             int first_block) {
  check(shape);
  ScheduleOptions forward_only = options;
  forward_only.reshard_after_forward = true;
  return placed(evaluation_computations(shape, first_block), shape, forward_only,
                /*reduces=*/false);
}

Schedules build_schedules(const ChainShape& shape, const ScheduleOptions& options) {
  Schedules all;
  all.training = training_schedule(shape, options);
  all.accumulation = options.reduce_every_micro_step ? all.training
                                                     : placed(training_computations(shape, options),
                                                              shape, options, /*reduces=*/false);
  all.evaluation = evaluation_schedule(shape, options);
  if (shape.decoder_begin > 0) {
    all.decoding = evaluation_schedule(shape, options, shape.decoder_begin);
  }
  if (!options.resident) return all;
  for (int u = 0; u < static_cast<int>(shape.unit_trains.size()); ++u) {
    all.start.push_back({Action::kGather, u});
    if (shape.unit_trains[static_cast<size_t>(u)]) all.refresh.push_back({Action::kRefresh, u});
  }
  return all;
}

std::string describe(const Schedule& schedule) {
  static constexpr const char* kNames[] = {"gather", "release", "forward", "loss",    "backward",
                                           "reduce", "refresh", "read",    "offload", "fetch"};
  std::string text;
  for (const Step& step : schedule) {
    text += fmt::format("{} {}", kNames[static_cast<int>(step.action)], step.index);
    if (step.action == Action::kBackward && step.keep == Keep::kInput) text += " (recompute)";
    if (step.action == Action::kBackward && step.keep == Keep::kAttention) {
      text += " (recompute all but attention)";
    }
    if (step.action == Action::kBackward && step.keep == Keep::kSelected) {
      text += " (recompute what is cheap)";
    }
    if (step.part) text += step.action == Action::kGather ? " (from parts)" : " (keep a part)";
    text += '\n';
  }
  return text;
}

}  // namespace strata::shard
