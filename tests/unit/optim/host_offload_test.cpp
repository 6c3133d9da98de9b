// Oracle: the same steps with homes and inputs where blocks compute, to the bit. Ranks are threads
// of this process; the host memory beside their device is the device's own, a CPU's.
#include <gtest/gtest.h>

#include "steps_of_ranks.h"

namespace strata::optim {
namespace {

using shard::BackwardPrefetch;
using Place = shard::ActivationHomeOptions::Place;

struct Case {
  std::string name;
  int world = 2;
  int shard_size = 2;
  int64_t micro_steps = 2;
  at::ScalarType reduce_type = at::kFloat;
  at::ScalarType param_type = at::kFloat;
  bool has_frozen_base = false;  // in bf16
  std::string optimizer = "adamw_torch";
  shard::ScheduleOptions schedule = {};
};

Job job_of(const Case& row, bool offloads) {
  Job job{.world = row.world,
          .shard_size = row.shard_size,
          .micro_steps = row.micro_steps,
          .has_frozen_base = row.has_frozen_base,
          .optimizer = row.optimizer,
          .store = {.param_type = row.param_type,
                    .reduce_type = row.reduce_type,
                    .homes_on_host = offloads},
          .schedule = row.schedule,
          .activations = {.place = offloads ? Place::kHost : Place::kWhereComputed}};
  job.schedule.offload_activations =
      offloads && row.schedule.activation_checkpointing == shard::Checkpointing::kFull;
  return job;
}

class HostOffload : public ::testing::TestWithParam<Case> {};

TEST_P(HostOffload, ChangesNoBit) {
  const Case& row = GetParam();
  const std::vector<Found> expected = run(job_of(row, /*offloads=*/false));
  const std::vector<Found> found = run(job_of(row, /*offloads=*/true));
  const bool recomputes = row.schedule.activation_checkpointing == shard::Checkpointing::kFull;
  for (size_t rank = 0; rank < found.size(); ++rank) {
    EXPECT_EQ(expected[rank].num_inputs_moved, 0);
    EXPECT_EQ(found[rank].num_inputs_moved > 0, recomputes);
  }
  expect_equal_bits(found, expected);
}

// With one rank in a shard group the sum over micro-batches is taken in the products where
// nothing is offloaded, and after them where it is: those rows have one micro-batch.
INSTANTIATE_TEST_SUITE_P(
    Rows, HostOffload,
    ::testing::Values(
        Case{.name = "two_ranks"}, Case{.name = "three_micro_batches", .micro_steps = 3},
        Case{.name = "reduced_in_bf16", .reduce_type = at::kBFloat16},
        Case{.name = "gathered_in_bf16", .param_type = at::kBFloat16},
        Case{.name = "frozen_base", .has_frozen_base = true}, Case{.name = "hybrid", .world = 4},
        Case{.name = "hybrid_reduced_in_bf16", .world = 4, .reduce_type = at::kBFloat16},
        Case{.name = "whole_until_backward", .schedule = {.reshard_after_forward = false}},
        Case{.name = "always_whole", .schedule = {.resident = true}},
        Case{.name = "reduced_at_the_end",
             .schedule = {.resident = true, .reduce_every_micro_step = false}},
        Case{.name = "one_slot",
             .schedule = {.slots = 1, .backward_prefetch = BackwardPrefetch::kPost}},
        Case{.name = "activations_kept",
             .schedule = {.activation_checkpointing = shard::Checkpointing::kNone}},
        Case{.name = "copies", .shard_size = 1, .micro_steps = 1},
        Case{.name = "copies_reduced_in_bf16",
             .shard_size = 1,
             .micro_steps = 1,
             .reduce_type = at::kBFloat16},
        Case{.name = "one_rank", .world = 1, .shard_size = 1, .micro_steps = 1},
        Case{.name = "one_rank_gathers_in_bf16",
             .world = 1,
             .shard_size = 1,
             .micro_steps = 1,
             .param_type = at::kBFloat16},
        Case{.name = "lion", .optimizer = "lion_32bit"},
        Case{.name = "state_in_8_bits", .optimizer = "adamw_8bit"},
        Case{.name = "adafactor", .optimizer = "adafactor"}),
    [](const auto& info) { return info.param.name; });

TEST(HostOffload, HomesAreNotTheSlots) {
  for (const bool offloads : {false, true}) {
    const auto model = small_model(/*has_frozen_base=*/false);
    comm::Mesh mesh = comm::make_fake_mesh(1, 1);
    shard::UnitStore store(*model, mesh, {.homes_on_host = offloads});
    fill(store);
    store.gather(1);
    store.wait_gather(1);
    store.open_gradients(1, /*first_micro_step=*/true);
    const shard::Home& home = store.home(1, 0);
    const nn::Parameter& parameter = *store.unit(1).segments[0].extents[0].parameter;
    EXPECT_EQ(parameter.value().is_alias_of(home.value), !offloads);
    EXPECT_TRUE(at::equal(parameter.value().view({-1}),
                          home.value.narrow(0, 0, parameter.value().numel())));
    home.gradient.fill_(7);
    store.reduce(1, /*last_micro_step=*/true);
    store.wait_reduce(1);
    store.finish_transfers();
    // No block used it: zero, whether it was written there or arrived from elsewhere.
    EXPECT_EQ(home.gradient.narrow(0, 0, parameter.value().numel()).abs().max().item<float>(), 0);
    store.release(1);
  }
}

}  // namespace
}  // namespace strata::optim
