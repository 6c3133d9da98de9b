// What a finished run leaves in its output folder: model or adapter, tokenizer and configuration
// files, state, report page. Owns: the choice of files. Never: tensor data (checkpoint/export.h).
#pragma once

#include <optional>

#include "strata/train/loop/trainer.h"

namespace strata::train {

// What lies beside the weights of a model or adapter folder that other tools load: configuration
// and tokenizer, file name -> content.
checkpoint::SmallFiles companion_files(const config::RunConfig& config, const Trainee& trainee,
                                       const Datasets& datasets);

// The element type of the result's files; nothing: as weights rest.
std::optional<at::ScalarType> result_type(const config::RunConfig& config, const Trainee& trainee);

// Collective over the ranks.
void write_results(const config::RunConfig& config, Trainee& trainee, Trainer& trainer);

}  // namespace strata::train
