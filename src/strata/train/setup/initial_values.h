// What a run's weights are at its start: those of the base's files or drawn, and an adapter's.
// Owns: the order in which homes are filled, and what of it a plan counts. Never: the layout.
#pragma once

#include <optional>

#include "strata/hf/model_folder.h"
#include "strata/models/model.h"
#include "strata/train/setup/trainee.h"

namespace strata::train {

// The files of the base. With fsdp_cpu_ram_efficient_loading they are open on rank 0 alone.
struct BaseFiles {
  std::optional<hf::ModelFolder> folder;
  models::WeightSources sources;
};

// Whether fsdp_cpu_ram_efficient_loading lets rank 0 read for all.
bool rank_0_reads(const config::RunConfig& config, const comm::Mesh& mesh);

// Fills every home of the trainee's store, which has its memory. Collective. Errors: those of
// reading the files, on all ranks.
void set_initial_values(const config::RunConfig& config, const BaseFiles& base, Trainee& trainee);

// The same for a plan, on device meta: the temporaries, and Trainee::largest_mapped. Collective.
void imagine_initial_values(const config::RunConfig& config, Trainee& trainee);

}  // namespace strata::train
