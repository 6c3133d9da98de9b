// Which files of a folder hold which split. Reads names only, never content.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace strata::data {

// The files of `split` in reading order, those of one kind (file_kinds.h). See read_split for the
// places and their order.
// `configuration`: of the data set's card (dataset_card.h), or else a folder in it; empty: the
// card's default, or the whole folder.
// Errors: ConfigError for a split or configuration that is not there, a split that is there twice
// or misses shards, and for a file in a format that is not read; IoError for a path that does not
// exist.
std::vector<std::filesystem::path> find_split_files(const std::filesystem::path& file_or_folder,
                                                    const std::string& split,
                                                    const std::string& configuration = {});

// Those that are of another kind.
std::vector<std::filesystem::path> find_left_out_files(const std::filesystem::path& file_or_folder,
                                                       const std::string& split,
                                                       const std::string& configuration = {});

// Whether `file`, which need not be there yet, is one of those that find_split_files would give for
// the split, or changes which they are. Never for a split that is one file.
bool would_read(const std::filesystem::path& file_or_folder, const std::string& split,
                const std::string& configuration, const std::filesystem::path& file);

// Whether there is anything of that pattern.
bool has_matches(const std::filesystem::path& pattern);

// Whether find_split_files would find it.
bool has_split(const std::filesystem::path& file_or_folder, const std::string& split,
               const std::string& configuration = {});

}  // namespace strata::data
