// A run's model with its adapter, before there is memory for weights: what the settings and
// config.json make of it. Owns: the order configuration -> model -> adapter -> codes -> types of
// rest. Never: memory, values.
#pragma once

#include <memory>

#include "strata/comm/mesh.h"
#include "strata/config/run_config.h"
#include "strata/train/setup/initial_values.h"
#include "strata/train/setup/strategy.h"
#include "strata/train/setup/trainee.h"

namespace strata::train {

// A trainee without memory, and what will fill it.
struct Blueprint {
  std::unique_ptr<Trainee> trainee;  // without store, executor and optimizer
  BaseFiles base;
  bool has_files = false;  // weights are read, not drawn or imagined
};

// Collective. On device meta config.json suffices.
Blueprint draw_up(const config::RunConfig& config, comm::Mesh& mesh, const Target& target);

}  // namespace strata::train
