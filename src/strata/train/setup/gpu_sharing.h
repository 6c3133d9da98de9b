// Which ranks compute on one GPU together. Owns: what is said of that. Never: who computes where.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace strata::train {

// `gpus`: a name for each rank's GPU, by rank. How many compute on that of `rank`.
int count_sharers(const std::vector<std::string>& gpus, int rank);

// A warning that names the ranks that share a GPU; nothing where none do.
std::optional<std::string> sharing_warning(const std::vector<std::string>& gpus);

}  // namespace strata::train
