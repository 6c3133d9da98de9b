// The actions of `strata config` that write files. Never: reading settings of a run.
#pragma once

#include <string>
#include <vector>

namespace strata::cli {

// Asks and writes: `strata config [--config_file FILE]`.
int run_questionnaire(const std::vector<std::string>& flags);
// `strata config default`: a file made without questions, never over an existing one.
int write_default(const std::vector<std::string>& flags);
// `strata config update`: the file with every key that it lacks at accelerate's default.
int update(const std::vector<std::string>& flags);
// `strata config convert --to fsdp2|deepspeed|strata FILE`.
int convert(const std::vector<std::string>& flags);

}  // namespace strata::cli
