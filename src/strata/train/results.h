// What a finished run leaves in its output folder: model or adapter, tokenizer and configuration
// files, state, report page. Owns: the choice of files. Never: tensor data (checkpoint/export.h).
#pragma once

#include "strata/train/trainer.h"

namespace strata::train {

// Collective over the ranks.
void write_results(const config::RunConfig& config, Trainee& trainee, const Datasets& datasets,
                   Trainer& trainer);

}  // namespace strata::train
