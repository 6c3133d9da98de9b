// Oracle: the same steps with homes and inputs where blocks compute, to the bit. Ranks are threads
// of this process; the host memory beside their device is the device's own, a CPU's.
#include <thread>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "../comm/listening_port.h"
#include "strata/comm/mesh.h"
#include "strata/comm/rendezvous.h"
#include "strata/models/registry.h"
#include "strata/optim/adamw.h"
#include "strata/optim/make_optimizer.h"
#include "strata/shard/executor.h"
#include "strata/shard/loading.h"

namespace strata::optim {
namespace {

using shard::BackwardPrefetch;
using Place = shard::ActivationHomeOptions::Place;

constexpr int64_t kVocabulary = 37;
constexpr int kSteps = 3;
// Matrices large enough for state in 8 bits, and in a layer more elements than are converted at
// once.
const Json kModel{{"model_type", "llama"},
                  {"vocab_size", kVocabulary},
                  {"hidden_size", 64},
                  {"intermediate_size", 400},
                  {"num_hidden_layers", 4},
                  {"num_attention_heads", 2},
                  {"num_key_value_heads", 1},
                  {"head_dim", 32},
                  {"tie_word_embeddings", false},
                  {"max_position_embeddings", 64}};

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

// What a rank has after its steps: all homes, gradients and moments, norms and a loss.
struct Found {
  std::vector<at::Tensor> tensors;
  int64_t num_inputs_moved = 0;
};

nn::Batch batch_of(int64_t tokens, int64_t shift) {
  nn::Batch batch;
  batch.offsets = {0, tokens / 3, tokens};
  batch.ids = (at::arange(tokens, at::kLong) * 7 + shift).remainder(kVocabulary);
  batch.targets = (batch.ids * 3 + 1).remainder(kVocabulary);
  batch.positions = at::arange(tokens, at::kLong);
  batch.token_keys = at::arange(tokens, at::kLong);
  return batch;
}

std::unique_ptr<models::Model> model_of(const Case& row) {
  auto model = models::create_model(kModel, {});
  for (nn::Parameter* parameter : model->parameters()) {
    const bool trains = !row.has_frozen_base ||
                        parameter->name().find("q_proj") != std::string::npos ||
                        parameter->name().find("norm") != std::string::npos;
    parameter->set_requires_grad(trains);
    if (!trains) parameter->set_storage_type(at::kBFloat16);
  }
  return model;
}

void fill(shard::UnitStore& store) {
  at::Generator generator = at::detail::createCPUGenerator(7);
  for (nn::Parameter* parameter : store.model().parameters()) {
    place_tensor(store, *parameter, at::randn(parameter->shape(), generator).mul_(0.2));
  }
}

void note_homes(shard::UnitStore& store, Found& found) {
  for (int u = 0; u < store.num_units(); ++u) {
    for (size_t s = 0; s < store.unit(u).segments.size(); ++s) {
      const shard::Home& home = store.home(u, static_cast<int>(s));
      found.tensors.push_back(home.value.clone());
      // What lies between tensors is padding with undefined content.
      if (!home.gradient.defined()) continue;
      for (const shard::Piece& piece :
           shard::pieces_of(store.unit(u).segments[s], store.mesh().shard->rank())) {
        found.tensors.push_back(home.gradient.narrow(0, piece.shard_begin, piece.length).clone());
      }
    }
  }
}

Found steps_of(const Case& row, comm::Mesh& mesh, bool offloads) {
  const auto model = model_of(row);
  shard::UnitStore store(
      *model, mesh,
      {.param_type = row.param_type, .reduce_type = row.reduce_type, .homes_on_host = offloads});
  fill(store);
  shard::ScheduleOptions options = row.schedule;
  options.offload_activations =
      offloads && options.activation_checkpointing == shard::Checkpointing::kFull;
  shard::Executor executor(*model, store,
                           build_schedules(shape_of(*model, store.partition()), options),
                           {.place = offloads ? Place::kHost : Place::kWhereComputed});
  Found found;
  executor.observe([&](const shard::Step& step, bool) {
    found.num_inputs_moved += step.action == shard::Action::kFetch;
  });
  const auto optimizer = make_optimizer(store, {.name = row.optimizer, .weight_decay = 0.1});
  nn::LossSums sums;
  nn::ForwardContext context;
  context.head.sums = &sums;
  const int rank = mesh.world->rank();
  for (int64_t step = 0; step < kSteps; ++step) {
    context.training = true;
    for (int64_t micro = 0; micro < row.micro_steps; ++micro) {
      // Of several sizes: places of inputs grow and are used again.
      executor.train(batch_of(20 + 4 * micro, 100 * step + 10 * micro + rank), context, micro == 0,
                     micro == row.micro_steps - 1);
    }
    const double norm = global_gradient_norm(store);
    found.tensors.push_back(at::full({1}, norm, at::kDouble));
    optimizer->step(1e-2, clip_factor(norm, 1.0));
    executor.parameters_changed();
  }
  context.training = false;
  executor.evaluate(batch_of(30, rank), context);
  found.tensors.push_back(at::full({1}, sums.loss, at::kDouble));
  note_homes(store, found);
  for (const StateTensor& state : optimizer->state()) found.tensors.push_back(state.data.clone());
  return found;
}

// By rank.
std::vector<Found> run(const Case& row, bool offloads) {
  const comm::ListeningPort port = comm::listening_port();
  std::vector<Found> found(static_cast<size_t>(row.world));
  std::vector<std::exception_ptr> failures(found.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < row.world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        comm::Rendezvous rendezvous({.rank = rank,
                                     .world_size = row.world,
                                     .port = port.number,
                                     .listen_descriptor = rank == 0 ? port.descriptor : -1,
                                     .timeout = std::chrono::seconds(30)});
        comm::Mesh mesh = comm::make_mesh(rendezvous, {.shard_size = row.shard_size});
        found[static_cast<size_t>(rank)] = steps_of(row, mesh, offloads);
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return found;
}

class HostOffload : public ::testing::TestWithParam<Case> {};

TEST_P(HostOffload, ChangesNoBit) {
  const Case& row = GetParam();
  const std::vector<Found> expected = run(row, /*offloads=*/false);
  const std::vector<Found> found = run(row, /*offloads=*/true);
  const bool recomputes = row.schedule.activation_checkpointing == shard::Checkpointing::kFull;
  for (size_t rank = 0; rank < found.size(); ++rank) {
    EXPECT_EQ(expected[rank].num_inputs_moved, 0);
    EXPECT_EQ(found[rank].num_inputs_moved > 0, recomputes);
    ASSERT_EQ(found[rank].tensors.size(), expected[rank].tensors.size());
    EXPECT_GT(expected[rank].tensors[0].item<double>(), 0) << "no gradient";
    for (size_t i = 0; i < found[rank].tensors.size(); ++i) {
      EXPECT_TRUE(at::equal(found[rank].tensors[i], expected[rank].tensors[i]))
          << "rank " << rank << ", tensor " << i << " of " << found[rank].tensors.size();
    }
  }
}

// With one rank in a shard group the sum over micro-batches is taken in the products where nothing
// is offloaded, and after them where it is: those rows have one micro-batch.
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
    const auto model = model_of({});
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
