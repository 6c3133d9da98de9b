// Builds what a run trains: model, adapter, homes filled from files, schedule, executor, optimizer.
// Owns: the order model -> adapters -> sharding -> optimizer -> values. Never: steps or batches.
#pragma once

#include <memory>

#include "strata/comm/mesh.h"
#include "strata/config/run_config.h"
#include "strata/train/setup/strategy.h"
#include "strata/train/setup/trainee.h"

namespace strata::train {

// What assemble() would refuse although settings, model and folders are all there is to know: wrap
// classes that the model has not, no room on disk for what is offloaded. Takes no memory for
// weights. Collective.
void check_layout(const config::RunConfig& config, comm::Mesh& mesh, const Target& target);
// The same before there are ranks, except for the room on disk. Not collective. Starts no thread.
void check_layout(const config::RunConfig& config, int world_size, int local_world_size,
                  const Target& target);

// Collective over the mesh. On device meta no weights are read: config.json suffices.
std::unique_ptr<Trainee> assemble(const config::RunConfig& config, comm::Mesh& mesh,
                                  const Target& target = {});

}  // namespace strata::train
