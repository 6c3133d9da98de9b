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

// The block before the head would be recomputed at once, so it keeps its activations: the peak is
// the same as during that recomputation, and a forward pass of one block is saved.
Keep keep_of(int block, const ChainShape& shape, const ScheduleOptions& options) {
  const int head = static_cast<int>(shape.block_units.size()) - 1;
  if (!options.activation_checkpointing || block == head - 1) return Keep::kActivations;
  const bool has_nothing_to_recompute =
      !shape.backward_reads_parameters[static_cast<size_t>(block)];
  return has_nothing_to_recompute ? Keep::kActivations : Keep::kInput;
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

std::vector<Computation> evaluation_computations(const ChainShape& shape) {
  std::vector<Computation> computations;
  for (int b = 0; b < static_cast<int>(shape.block_units.size()); ++b) {
    computations.push_back(
        {{Action::kForward, b, Keep::kNothing}, shape.block_units[static_cast<size_t>(b)], false});
  }
  return computations;
}

// residents[i]: units that are gathered while computation i runs. A unit is there for the
// computation and for `prefetch` ones before it; without resharding also between its first and last
// use.
std::vector<std::set<int>> residents(const std::vector<Computation>& computations,
                                     const ScheduleOptions& options) {
  const int n = static_cast<int>(computations.size());
  std::vector<std::set<int>> resident(static_cast<size_t>(n));
  for (int use = 0; use < n; ++use) {
    const bool backward = computations[static_cast<size_t>(use)].is_backward;
    const int ahead = backward ? options.backward_prefetch : options.forward_prefetch;
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

Schedule place_gathers(const std::vector<Computation>& computations, const ChainShape& shape,
                       const ScheduleOptions& options) {
  const std::vector<std::set<int>> resident = residents(computations, options);
  Schedule schedule;
  std::set<int> now;
  for (size_t i = 0; i < computations.size(); ++i) {
    // Own units first, then those fetched ahead.
    for (int u : computations[i].units) {
      if (now.insert(u).second) schedule.push_back({Action::kGather, u});
    }
    for (int u : resident[i]) {
      if (now.insert(u).second) schedule.push_back({Action::kGather, u});
    }
    schedule.push_back(computations[i].step);
    if (computations[i].is_backward) {
      for (int u : completed_units(computations[i].step.index, shape)) {
        schedule.push_back({Action::kReduce, u});
      }
    }
    for (auto u = now.begin(); u != now.end();) {
      const bool stays = i + 1 < computations.size() && resident[i + 1].count(*u) > 0;
      if (stays) {
        ++u;
        continue;
      }
      schedule.push_back({Action::kRelease, *u});
      u = now.erase(u);
    }
  }
  return schedule;
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
  return place_gathers(training_computations(shape, options), shape, options);
}

Schedule evaluation_schedule(const ChainShape& shape, const ScheduleOptions& options) {
  check(shape);
  ScheduleOptions forward_only = options;
  forward_only.reshard_after_forward = true;
  return place_gathers(evaluation_computations(shape), shape, forward_only);
}

std::string describe(const Schedule& schedule) {
  static constexpr const char* kNames[] = {"gather", "release",  "forward",
                                           "loss",   "backward", "reduce"};
  std::string text;
  for (const Step& step : schedule) {
    text += fmt::format("{} {}", kNames[static_cast<int>(step.action)], step.index);
    if (step.action == Action::kBackward && step.keep == Keep::kInput) text += " (recompute)";
    text += '\n';
  }
  return text;
}

int peak_gathered_units(const Schedule& schedule) {
  int now = 0, peak = 0;
  for (const Step& step : schedule) {
    if (step.action == Action::kGather) peak = std::max(peak, ++now);
    if (step.action == Action::kRelease) --now;
  }
  return peak;
}

}  // namespace strata::shard
