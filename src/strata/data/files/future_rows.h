// Whether a file that a program is about to write would be taken for one of a data set's. Reads
// names only, of what is on this disk.
#pragma once

#include <filesystem>
#include <string>

namespace strata::data {

// Of the data sets `names` (dataset_name: paths with commas between) the one that would take `file`
// for a file of one of its `splits` at the next start (split_files.h: would_read); empty: none.
// Errors: as find_split_files for what is wrong with the cards and specifications.
std::string set_that_would_read(const std::string& names, const std::string& splits,
                                const std::string& configuration,
                                const std::filesystem::path& file);

}  // namespace strata::data
