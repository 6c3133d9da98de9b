// Oracle: the invariants of the schedule written in its header, checked by replaying every
// schedule.
#include "strata/shard/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "strata/base/error.h"

namespace strata::shard {
namespace {

// embedding, `layers` layers, head; one unit each. Tied: the head needs the embedding's unit too.
ChainShape chain(int layers, bool tied, int first_trained) {
  ChainShape shape;
  for (int b = 0; b < layers + 2; ++b) {
    shape.block_units.push_back({b});
    shape.block_trains.push_back(b >= first_trained);
    shape.backward_reads_parameters.push_back(b > 0);
    shape.unit_trains.push_back(b >= first_trained);
  }
  if (tied) {
    shape.block_units.back() = {0, layers + 1};
    shape.unit_trains[0] = shape.block_trains[0] || shape.block_trains.back();
  }
  return shape;
}

// The most units that are gathered at once.
int peak_gathered_units(const Schedule& schedule) {
  int now = 0, peak = 0;
  for (const Step& step : schedule) {
    if (step.action == Action::kGather) peak = std::max(peak, ++now);
    if (step.action == Action::kRelease) --now;
  }
  return peak;
}

// Walks a training schedule as the executor does and checks every invariant on the way.
void replay(const ChainShape& shape, const Schedule& schedule) {
  const int head = static_cast<int>(shape.block_units.size()) - 1;
  std::set<int> gathered, parts;
  std::set<int> forwarded, backwarded;
  std::map<int, int> reduced;
  int next_forward = 0;
  int next_backward = head - 1;
  for (const Step& step : schedule) {
    switch (step.action) {
      case Action::kGather:
        EXPECT_TRUE(gathered.insert(step.index).second) << "gathered twice: unit " << step.index;
        EXPECT_EQ(parts.erase(step.index) > 0, step.part) << "unit " << step.index;
        break;
      case Action::kRelease:
        EXPECT_EQ(gathered.erase(step.index), 1U) << "released while sharded: unit " << step.index;
        if (step.part) parts.insert(step.index);
        break;
      case Action::kRefresh:
        ADD_FAILURE() << "refreshed inside a micro-batch: unit " << step.index;
        break;
      case Action::kForward:
      case Action::kLoss:
        EXPECT_EQ(step.index, next_forward++);
        for (int u : shape.block_units[step.index]) EXPECT_TRUE(gathered.count(u));
        forwarded.insert(step.index);
        if (step.action == Action::kLoss) backwarded.insert(step.index);
        break;
      case Action::kBackward:
        EXPECT_EQ(step.index, next_backward--);
        EXPECT_TRUE(forwarded.count(step.index));
        if (shape.backward_reads_parameters[step.index]) {
          for (int u : shape.block_units[step.index]) EXPECT_TRUE(gathered.count(u));
        }
        backwarded.insert(step.index);
        break;
      case Action::kReduce:
        ++reduced[step.index];
        for (int b = 0; b <= head; ++b) {
          const auto& units = shape.block_units[b];
          const bool uses = std::find(units.begin(), units.end(), step.index) != units.end();
          const int first = static_cast<int>(
              std::find(shape.block_trains.begin(), shape.block_trains.end(), true) -
              shape.block_trains.begin());
          if (uses && b >= first) {
            EXPECT_TRUE(backwarded.count(b)) << "unit " << step.index;
          }
        }
        break;
      case Action::kRead:
        break;  // ReadsComeAheadOfTheirGathers
      case Action::kOffload:
      case Action::kFetch:
        break;  // OffloadedInputsLeaveAsTheirBlockBeginsAndComeBackAhead
    }
  }
  EXPECT_TRUE(gathered.empty());
  EXPECT_TRUE(parts.empty()) << "a part is kept for nothing";
  for (size_t u = 0; u < shape.unit_trains.size(); ++u) {
    EXPECT_EQ(reduced[static_cast<int>(u)], shape.unit_trains[u] ? 1 : 0) << "unit " << u;
  }
}

TEST(Schedule, InvariantsHoldForEveryOption) {
  for (int layers : {1, 2, 5}) {
    for (bool tied : {false, true}) {
      for (int first_trained : {0, 1, layers + 1}) {
        for (bool reshard : {true, false}) {
          for (int slots : {1, 2, 3, 1000}) {
            for (const auto backward :
                 {BackwardPrefetch::kPre, BackwardPrefetch::kPost, BackwardPrefetch::kNone}) {
              for (bool part : {false, true}) {
                const ChainShape shape = chain(layers, tied, first_trained);
                replay(shape, training_schedule(shape, {.reshard_after_forward = reshard,
                                                        .reshard_to_part = part,
                                                        .slots = slots,
                                                        .backward_prefetch = backward}));
              }
            }
          }
        }
      }
    }
  }
}

TEST(Schedule, FullShardHoldsAsManyUnitsAsThereAreSlots) {
  const ChainShape shape = chain(6, /*tied=*/false, 0);
  for (int slots : {1, 2, 3, 4}) {
    EXPECT_EQ(peak_gathered_units(training_schedule(shape, {.slots = slots})), slots);
  }
  const ScheduleOptions post{.backward_prefetch = BackwardPrefetch::kPost};
  EXPECT_EQ(peak_gathered_units(training_schedule(shape, post)), 2) << "forward prefetch";
  const ScheduleOptions least{.forward_prefetch = false,
                              .backward_prefetch = BackwardPrefetch::kPost};
  EXPECT_EQ(peak_gathered_units(training_schedule(shape, least)), 1);
}

// What happens around the backward pass of block 3 of 6 layers, as FSDP documents its prefetches.
TEST(Schedule, BackwardPrefetchesAreInTheOrderOfTheirNames) {
  const ChainShape shape = chain(6, /*tied=*/false, 0);
  const auto around = [&](BackwardPrefetch prefetch) {
    const std::string text = describe(training_schedule(shape, {.backward_prefetch = prefetch}));
    const size_t begin = text.find("backward 4");
    std::string part = text.substr(begin, text.find("backward 2") - begin);
    for (size_t at; (at = part.find(" (recompute)")) != std::string::npos;) part.erase(at, 12);
    std::replace(part.begin(), part.end(), '\n', ',');
    return part;
  };
  EXPECT_EQ(around(BackwardPrefetch::kPre),
            "backward 4,reduce 4,release 4,gather 2,backward 3,reduce 3,release 3,gather 1,");
  EXPECT_EQ(around(BackwardPrefetch::kPost),
            "backward 4,release 4,gather 3,reduce 4,backward 3,release 3,gather 2,reduce 3,");
  EXPECT_EQ(around(BackwardPrefetch::kNone),
            "backward 4,reduce 4,release 4,gather 3,backward 3,reduce 3,release 3,gather 2,");
}

TEST(Schedule, ResidentUnitsAreGatheredOnceAndRefreshed) {
  ChainShape shape = chain(3, /*tied=*/false, /*first_trained=*/2);
  const Schedules schedules = build_schedules(shape, {.resident = true});
  EXPECT_EQ(describe(schedules.start), "gather 0\ngather 1\ngather 2\ngather 3\ngather 4\n");
  EXPECT_EQ(describe(schedules.refresh), "refresh 2\nrefresh 3\nrefresh 4\n");
  for (const Schedule* schedule : {&schedules.training, &schedules.evaluation}) {
    EXPECT_EQ(describe(*schedule).find("gather"), std::string::npos);
    EXPECT_EQ(describe(*schedule).find("release"), std::string::npos);
  }
  EXPECT_TRUE(build_schedules(shape, {}).start.empty());
  EXPECT_TRUE(build_schedules(shape, {}).refresh.empty());
}

TEST(Schedule, GradientsMayStayWholeUntilTheLastMicroStep) {
  const ChainShape shape = chain(3, /*tied=*/false, 0);
  const Schedules schedules = build_schedules(shape, {.reduce_every_micro_step = false});
  EXPECT_EQ(describe(schedules.accumulation).find("reduce"), std::string::npos);
  EXPECT_NE(describe(schedules.training).find("reduce"), std::string::npos);
  replay(shape, schedules.training);
}

TEST(Schedule, SelectiveCheckpointingKeepsWhatIsCostlyOfEveryLayer) {
  const ChainShape shape = chain(3, /*tied=*/false, 0);
  const ScheduleOptions options{.activation_checkpointing = Checkpointing::kSelective};
  int selected = 0;
  for (const Step& step : training_schedule(shape, options)) {
    EXPECT_NE(step.keep, Keep::kInput);
    selected += step.action == Action::kForward && step.keep == Keep::kSelected;
  }
  EXPECT_EQ(selected, 3);
}

// By the text of Schedule::describe, what each of 6 layers does in its backward pass.
TEST(Schedule, TheFirstLayersKeepLessThanThoseBehindThem) {
  const auto layers = [](const ChainShape& shape, const ScheduleOptions& options) {
    std::string text;
    for (const Step& step : training_schedule(shape, options)) {
      if (step.action != Action::kBackward || step.index == 0) continue;
      text.insert(text.begin(), ".IASK"[static_cast<int>(step.keep)]);
    }
    return text;
  };
  const ChainShape shape = chain(6, /*tied=*/false, 0);
  const auto with = [](Checkpointing first, int count, Checkpointing behind) {
    return ScheduleOptions{.activation_checkpointing = first,
                           .checkpointed_blocks = count,
                           .checkpointing_behind = behind};
  };
  using enum Checkpointing;
  EXPECT_EQ(layers(shape, {.activation_checkpointing = kAttention}), "AAAAAK");
  EXPECT_EQ(layers(shape, with(kFull, 2, kNone)), "IIKKKK");
  EXPECT_EQ(layers(shape, with(kFull, 2, kAttention)), "IIAAAK");
  EXPECT_EQ(layers(shape, with(kAttention, 3, kSelective)), "AAASSS");
  EXPECT_EQ(layers(shape, with(kSelective, 5, kNone)), "SSSSSK");
  EXPECT_EQ(layers(shape, with(kFull, 6, kNone)), "IIIIIK");
  EXPECT_EQ(layers(shape, with(kFull, 0, kNone)), "KKKKKK");
  // Only what runs backward counts.
  EXPECT_EQ(layers(chain(6, /*tied=*/false, /*first_trained=*/3), with(kFull, 2, kNone)), "IIKK");
}

TEST(Schedule, WithoutReshardingEveryUnitIsGatheredOnce) {
  const ChainShape shape = chain(6, /*tied=*/true, 0);
  const Schedule schedule = training_schedule(shape, {.reshard_after_forward = false});
  const auto gathers = std::count_if(schedule.begin(), schedule.end(),
                                     [](const Step& s) { return s.action == Action::kGather; });
  EXPECT_EQ(gathers, 8);
}

TEST(Schedule, BlocksBeforeTheFirstTrainedKeepNothingAndRunNoBackward) {
  const ChainShape shape = chain(4, /*tied=*/false, /*first_trained=*/3);
  for (const Step& step : training_schedule(shape, {})) {
    if (step.action == Action::kForward && step.index < 3) {
      EXPECT_EQ(step.keep, Keep::kNothing);
    }
    if (step.action == Action::kBackward) {
      EXPECT_GE(step.index, 3);
    }
  }
}

TEST(Schedule, ReadsComeAheadOfTheirGathers) {
  const ChainShape shape = chain(5, /*tied=*/true, 0);
  for (const int ahead : {1, 2, 3}) {
    ScheduleOptions options;
    const Schedule plain = training_schedule(shape, options);
    options.read_ahead = ahead;
    const Schedule schedule = training_schedule(shape, options);
    std::vector<int> reads, gathers;
    for (const Step& step : schedule) {
      if (step.action == Action::kRead) reads.push_back(step.index);
      if (step.action != Action::kGather) continue;
      gathers.push_back(step.index);
      // When the last of the order is on its way there is nothing left to read.
      EXPECT_TRUE(reads.size() == gathers.size() + static_cast<size_t>(ahead) ||
                  reads.size() == static_cast<size_t>(std::count_if(
                                      plain.begin(), plain.end(),
                                      [](const Step& s) { return s.action == Action::kGather; })));
    }
    EXPECT_EQ(reads, gathers);
    EXPECT_EQ(schedule.size(), plain.size() + reads.size());
  }
}

TEST(Schedule, OffloadedInputsLeaveAsTheirBlockBeginsAndComeBackAhead) {
  for (const int layers : {1, 2, 6}) {
    for (const int first_trained : {0, 2}) {
      if (first_trained > layers) continue;
      const ChainShape shape = chain(layers, /*tied=*/true, first_trained);
      ScheduleOptions options;
      const Schedule plain = training_schedule(shape, options);
      options.offload_activations = true;
      const Schedule schedule = training_schedule(shape, options);
      replay(shape, schedule);
      std::set<int> away, coming;
      size_t moves = 0;
      // The output of an embedding that trains is there anyway.
      const int stays = first_trained == 0 ? 1 : -1;
      for (size_t i = 0; i < schedule.size(); ++i) {
        const Step& step = schedule[i];
        if (step.action == Action::kOffload) {
          EXPECT_TRUE(away.insert(step.index).second);
          EXPECT_EQ(schedule[i + 1].action, Action::kForward);
          EXPECT_EQ(schedule[i + 1].index, step.index);
          ++moves;
        } else if (step.action == Action::kFetch) {
          EXPECT_EQ(away.erase(step.index), 1U) << "fetched what is not away: " << step.index;
          coming.insert(step.index);
          // What the running block reads, and what the next one will.
          EXPECT_LE(coming.size(), 2U);
          ++moves;
        } else if (step.action == Action::kBackward && step.keep == Keep::kInput) {
          EXPECT_EQ(coming.erase(step.index), step.index == stays ? 0U : 1U) << step.index;
        } else if (step.action == Action::kForward && step.keep == Keep::kInput) {
          EXPECT_EQ(away.contains(step.index), step.index != stays) << step.index;
        }
      }
      EXPECT_TRUE(away.empty() && coming.empty());
      EXPECT_EQ(schedule.size(), plain.size() + moves);
      // The last layer is not recomputed, layers before the first trained one keep nothing.
      const int expected = std::max(0, layers - 2);
      EXPECT_EQ(moves, static_cast<size_t>(2 * expected));
    }
  }
}

TEST(Schedule, DecodingIsTheEvaluationOfTheDecodersBlocks) {
  // Embedding, two layers, the encoder's norm, the decoder's embedding (tied), two layers, head.
  ChainShape shape = chain(/*layers=*/6, /*tied=*/true, /*first_trained=*/0);
  shape.block_units[4] = {0};
  EXPECT_TRUE(build_schedules(shape, {}).decoding.empty());
  shape.decoder_begin = 4;
  std::set<int> gathered;
  std::vector<int> blocks;
  for (const Step& step : build_schedules(shape, {}).decoding) {
    if (step.action == Action::kGather) gathered.insert(step.index);
    if (step.action == Action::kRelease) gathered.erase(step.index);
    if (step.action != Action::kForward) continue;
    blocks.push_back(step.index);
    for (int u : shape.block_units[static_cast<size_t>(step.index)]) {
      EXPECT_TRUE(gathered.contains(u)) << "unit " << u << " of block " << step.index;
    }
  }
  EXPECT_EQ(blocks, (std::vector<int>{4, 5, 6, 7}));
  EXPECT_TRUE(gathered.empty());
}

TEST(Schedule, NothingTrainableIsRefused) {
  EXPECT_THROW(training_schedule(chain(2, false, 4), {}), ConfigError);
}

TEST(Schedule, EvaluationRunsEveryBlockForwardOnly) {
  const Schedule schedule = evaluation_schedule(chain(3, true, 0), {});
  int forwards = 0;
  for (const Step& step : schedule) {
    EXPECT_NE(step.action, Action::kBackward);
    EXPECT_NE(step.action, Action::kReduce);
    forwards += step.action == Action::kForward;
  }
  EXPECT_EQ(forwards, 5);
}

TEST(Schedule, DescriptionNamesEveryStep) {
  const Schedule schedule = training_schedule(chain(2, false, 0), {});
  const std::string text = describe(schedule);
  EXPECT_EQ(static_cast<size_t>(std::count(text.begin(), text.end(), '\n')), schedule.size());
  EXPECT_NE(text.find("backward 1 (recompute)"), std::string::npos);
}

}  // namespace
}  // namespace strata::shard
