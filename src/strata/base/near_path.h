// What a mistyped path may have meant. Reads names of one folder only.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace strata {

// For a path that is not there: paths with the names that are closest to the first part that is
// missing, in the folder where it is missing, at most three, nearest first; with the parts after
// it where they are there.
std::vector<std::string> near_paths(const std::filesystem::path& missing);

// For the end of a message: "; did you mean data/train.jsonl?", or where a link to nothing leads.
std::string did_you_mean(const std::filesystem::path& missing);

}  // namespace strata
