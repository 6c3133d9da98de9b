// Which files of a folder hold which split. Reads names only, never content.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace strata::data {

// What a file's name says about its content.
struct FileFormat {
  std::string extension;       // ".jsonl", ".csv", ...; empty: none that is read
  bool is_compressed = false;  // .gz or .zst behind it
};
FileFormat file_format(const std::filesystem::path& path);

// The files of `split` in reading order. See load_split for the places and their order.
// Errors: ConfigError for a split that is not there, is there twice or misses shards, and for a
// file in a format that is not read; IoError for a path that does not exist.
std::vector<std::filesystem::path> find_split_files(const std::filesystem::path& file_or_folder,
                                                    const std::string& split);

}  // namespace strata::data
