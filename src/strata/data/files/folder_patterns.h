// Files of a folder by patterns and by the words that `datasets` knows splits by. Reads names only.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace strata::data {

// Whether the relative path is one that the pattern names: * and ? stand for characters inside a
// name, [abc] for one of some, ** for any number of folders.
bool matches_pattern(const std::string& path, const std::string& pattern);

// The regular files below the folder, as sorted relative paths, without those that are hidden.
std::vector<std::string> list_files(const std::filesystem::path& folder);

// Whether a part of the relative path begins with a point or with two underscores: `datasets`
// leaves such files out.
bool is_hidden(const std::filesystem::path& relative);

// Splits by words, in the order of `datasets`: data/NAME-00000-of-00002.*; else files in folders
// called train (training), validation (valid, dev, val) or test (testing, eval, evaluation); else
// files with such a word in their names; else all are "train". A word ends where anything but a
// letter stands.
std::map<std::string, std::vector<std::string>> split_by_words(
    const std::vector<std::string>& files);

}  // namespace strata::data
