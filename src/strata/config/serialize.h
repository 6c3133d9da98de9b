// Resolved settings as text: for checkpoints and for the check that every rank has the same (I8).
// Never: reading them back (a checkpoint's copy is for people and for comparison).
#pragma once

#include <string>

#include "strata/config/run_config.h"

namespace strata::config {

// A JSON object {"learning_rate": 2e-05, ...} of every bound setting in the table's order, with
// indent 2. Read as a settings file it gives the same settings again.
std::string to_json_text(const RunConfig& config);

// 16 hexadecimal digits over every setting that must be equal on all ranks: the launcher's own
// (machine_rank, log_dir, ...) are left out.
std::string settings_hash(const RunConfig& config);

}  // namespace strata::config
