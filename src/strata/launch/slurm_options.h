// What sbatch would refuse, or take for something else, only after the job was handed in. Owns:
// SLURM's forms of times and sizes. Never: the script (slurm_script.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "strata/config/run_config.h"

namespace strata::launch {

// Seconds of a time limit as sbatch reads it: MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS,
// DAYS-HOURS, DAYS-HOURS:MINUTES, DAYS-HOURS:MINUTES:SECONDS; 0 for none (0, UNLIMITED, INFINITE).
// Nothing for another text.
std::optional<int64_t> slurm_seconds(std::string_view text);

// Whether sbatch reads it as a size of memory: 4096, 200G.
bool is_slurm_memory(std::string_view text);

// Throws ConfigError that names the flag.
void require_slurm_options(const config::SlurmConfig& slurm);

}  // namespace strata::launch
