// What every rank of a run must have read alike. Owns: the text by which ranks compare it. Never:
// the comparison.
#pragma once

#include <string>

#include "strata/config/run_config.h"
#include "strata/train/datasets.h"

namespace strata::train {

// A line for each set of rows, for the state of a model on the Hub, for config.json and for the
// weights of a model or adapter in a folder (hf/weights_fingerprint.h): of ranks whose texts differ
// one has other files than another, as where each machine has a copy of its own. Rows whose
// template writes the date are compared by their number: two machines may be on either side of
// midnight.
std::string inputs_text(const config::RunConfig& config, const Datasets& sets);

}  // namespace strata::train
