// Folders that Dataset.save_to_disk and DatasetDict.save_to_disk wrote: their own lists of splits
// and files. Reads no rows.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace strata::data {

// Whether the folder is one data set with its list of files.
bool is_saved_dataset(const std::filesystem::path& folder);

// The splits of a folder that holds a data set for each; empty for any other folder.
// Errors: FormatError for a list that names none.
std::vector<std::string> saved_splits(const std::filesystem::path& folder);

// The files of a saved data set, in reading order. Errors: FormatError for a list that names none.
std::vector<std::filesystem::path> saved_files(const std::filesystem::path& folder);

}  // namespace strata::data
