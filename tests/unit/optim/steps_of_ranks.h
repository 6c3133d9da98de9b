// A few optimizer steps of a small Llama on ranks that are threads of this process, and all that a
// rank has after them. Owns: the model, its data, the threads, what is equal. Never: what is
// compared with what.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
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

// What the ranks run.
struct Job {
  int world = 2;
  int shard_size = 2;
  int64_t micro_steps = 2;
  bool has_frozen_base = false;  // in bf16
  std::string optimizer = "adamw_torch";
  shard::StoreOptions store = {};
  shard::ScheduleOptions schedule = {};
  shard::ActivationHomeOptions activations = {};
};

// What a rank has after its steps: all homes, gradients and moments, norms and a loss.
struct Found {
  std::vector<at::Tensor> tensors;
  int64_t num_inputs_moved = 0;
};

inline constexpr int64_t kVocabulary = 37;

// Matrices large enough for state in 8 bits, and in a layer more elements than are converted at
// once.
inline std::unique_ptr<models::Model> small_model(bool has_frozen_base) {
  const Json config{{"model_type", "llama"},
                    {"vocab_size", kVocabulary},
                    {"hidden_size", 64},
                    {"intermediate_size", 400},
                    {"num_hidden_layers", 4},
                    {"num_attention_heads", 2},
                    {"num_key_value_heads", 1},
                    {"head_dim", 32},
                    {"tie_word_embeddings", false},
                    {"max_position_embeddings", 64}};
  auto model = models::create_model(config, {});
  for (nn::Parameter* parameter : model->parameters()) {
    const bool trains = !has_frozen_base || parameter->name().find("q_proj") != std::string::npos ||
                        parameter->name().find("norm") != std::string::npos;
    parameter->set_requires_grad(trains);
    if (!trains) parameter->set_storage_type(at::kBFloat16);
  }
  return model;
}

inline nn::Batch batch_of(int64_t tokens, int64_t shift) {
  nn::Batch batch;
  batch.offsets = {0, tokens / 3, tokens};
  batch.ids = (at::arange(tokens, at::kLong) * 7 + shift).remainder(kVocabulary);
  batch.targets = (batch.ids * 3 + 1).remainder(kVocabulary);
  batch.positions = at::arange(tokens, at::kLong);
  batch.token_keys = at::arange(tokens, at::kLong);
  return batch;
}

inline void fill(shard::UnitStore& store) {
  at::Generator generator = at::detail::createCPUGenerator(7);
  for (nn::Parameter* parameter : store.model().parameters()) {
    place_tensor(store, *parameter, at::randn(parameter->shape(), generator).mul_(0.2));
  }
}

inline void note_homes(shard::UnitStore& store, Found& found) {
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

inline Found steps_of(const Job& job, comm::Mesh& mesh) {
  constexpr int kSteps = 3;
  const auto model = small_model(job.has_frozen_base);
  shard::UnitStore store(*model, mesh, job.store);
  fill(store);
  shard::Executor executor(*model, store,
                           build_schedules(shape_of(*model, store.partition()), job.schedule),
                           job.activations);
  Found found;
  executor.observe([&](const shard::Step& step, bool) {
    found.num_inputs_moved += step.action == shard::Action::kFetch;
  });
  const auto optimizer = make_optimizer(store, {.name = job.optimizer, .weight_decay = 0.1});
  nn::LossSums sums;
  nn::ForwardContext context;
  context.head.sums = &sums;
  const int rank = mesh.world->rank();
  for (int64_t step = 0; step < kSteps; ++step) {
    context.training = true;
    for (int64_t micro = 0; micro < job.micro_steps; ++micro) {
      // Of several sizes: places of inputs grow and are used again.
      executor.train(batch_of(20 + 4 * micro, 100 * step + 10 * micro + rank), context, micro == 0,
                     micro == job.micro_steps - 1);
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
inline std::vector<Found> run(const Job& job) {
  const comm::ListeningPort port = comm::listening_port();
  std::vector<Found> found(static_cast<size_t>(job.world));
  std::vector<std::exception_ptr> failures(found.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job.world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        comm::Rendezvous rendezvous({.rank = rank,
                                     .world_size = job.world,
                                     .port = port.number,
                                     .listen_descriptor = rank == 0 ? port.descriptor : -1,
                                     .timeout = std::chrono::seconds(30)});
        comm::Mesh mesh = comm::make_mesh(rendezvous, {.shard_size = job.shard_size});
        found[static_cast<size_t>(rank)] = steps_of(job, mesh);
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

// Of runs that have learnt something.
inline void expect_equal_bits(const std::vector<Found>& found, const std::vector<Found>& expected) {
  for (size_t rank = 0; rank < found.size(); ++rank) {
    ASSERT_EQ(found[rank].tensors.size(), expected[rank].tensors.size());
    EXPECT_GT(expected[rank].tensors[0].item<double>(), 0) << "no gradient";
    for (size_t i = 0; i < found[rank].tensors.size(); ++i) {
      EXPECT_TRUE(at::equal(found[rank].tensors[i], expected[rank].tensors[i]))
          << "rank " << rank << ", tensor " << i << " of " << found[rank].tensors.size();
    }
  }
}

}  // namespace strata::optim
