#include "strata/data/files/split_files.h"

#include <fnmatch.h>
#include <glob.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/base/near_path.h"
#include "strata/data/files/dataset_card.h"
#include "strata/data/files/file_format.h"
#include "strata/data/files/file_kinds.h"
#include "strata/data/files/folder_patterns.h"
#include "strata/data/files/saved_sets.h"
#include "strata/data/files/shard_names.h"
#include "strata/data/files/source.h"

namespace strata::data {
namespace {

namespace fs = std::filesystem;

// The places where a split whose name no rule of `datasets` knows may lie, the first one wins.
enum class Place { kFile, kShards, kDataFolder, kSubfolder };

struct Candidate {
  std::string split;
  Place place;
  fs::path path;
};

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

bool is_readable(const fs::path& path) { return !file_format(path).extension.empty(); }

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  if (error)
    throw IoError("{}: found {}, expected a readable folder", folder.string(), error.message());
  std::sort(entries.begin(), entries.end());
  return entries;
}

void add_top_level(const fs::path& path, std::vector<Candidate>& found) {
  const std::string stem = stem_of(path);
  if (const auto shard = parse_shard(stem)) {
    found.push_back({shard->split, Place::kShards, path});
  } else {
    found.push_back({stem, Place::kFile, path});
  }
}

void add_folder(const fs::path& folder, std::vector<Candidate>& found) {
  const std::string name = folder.filename().string();
  for (const fs::path& path : sorted_entries(folder)) {
    if (!fs::is_regular_file(path) || !is_readable(path)) continue;
    if (name == "data") {
      const std::string file = path.filename().string();
      const auto shard = parse_shard(stem_of(path));  // "train_prefs" is not "train"
      found.push_back({shard ? shard->split : file.substr(0, file.find_first_of("-._")),
                       Place::kDataFolder, path});
    } else {
      found.push_back({name, Place::kSubfolder, path});
    }
  }
}

std::vector<Candidate> list_candidates(const fs::path& folder) {
  std::vector<Candidate> found;
  for (const fs::path& path : sorted_entries(folder)) {
    if (fs::is_directory(path)) {
      add_folder(path, found);
    } else if (is_readable(path)) {
      add_top_level(path, found);
    }
  }
  return found;
}

// The program that makes a data file of one that is packed in a way that is not read; empty: not
// one.
std::string unpacker_of(const fs::path& path) {
  static const std::map<std::string, std::string> kUnpackers = {{".bz2", "bunzip2"},
                                                                {".xz", "unxz"},
                                                                {".lzma", "unlzma"},
                                                                {".lz4", "unlz4"},
                                                                {".zip", "unzip"}};
  const auto found = kUnpackers.find(lower(path.extension().string()));
  return found != kUnpackers.end() && is_readable(path.stem()) ? found->second : "";
}

[[noreturn]] void refuse_format(const fs::path& path) {
  std::string advice;
  if (path.extension() == ".xlsx") advice = "; save the sheet as CSV";
  if (const std::string unpacker = unpacker_of(path); !unpacker.empty()) {
    advice = fmt::format("; unpack it first: {} {}", unpacker, path.string());
  }
  throw ConfigError(
      "{}: found a file of an unknown format, expected .jsonl, .json, .csv, .tsv, .txt (each also "
      "with .gz or .zst), .parquet or .arrow{}",
      path.string(), advice);
}

[[noreturn]] void refuse_split(const std::string& subject, const std::vector<std::string>& have,
                               const std::string& split) {
  throw ConfigError("{}: found {}, expected a split \"{}\"; add {}.jsonl or name another split",
                    subject, have.empty() ? "no splits" : fmt::format("{}", fmt::join(have, ", ")),
                    split, split);
}

bool is_pattern(const fs::path& path) {
  return path.string().find_first_of("*?[") != std::string::npos && !fs::exists(path);
}

}  // namespace

bool has_matches(const fs::path& pattern) {
  glob_t found = {};
  const bool is_found = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0;
  ::globfree(&found);
  return is_found;
}

namespace {

// The files that match, sorted by name.
std::vector<fs::path> match_pattern(const fs::path& pattern) {
  glob_t found = {};
  const int code = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<fs::path> files;
  for (size_t i = 0; i < found.gl_pathc; ++i) {
    if (fs::is_regular_file(found.gl_pathv[i])) files.emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
  if ((code != 0 && code != GLOB_NOMATCH) || files.empty()) {
    const std::string text = pattern.string();
    const fs::path fixed = fs::path(text.substr(0, text.find_first_of("*?["))).parent_path();
    throw IoError("{}: found no file that matches, expected at least one{}", text,
                  fixed.empty() || fs::exists(fixed) ? "" : did_you_mean(fixed));
  }
  return files;
}

// The readable files below the folder by the words in their names.
std::map<std::string, std::vector<std::string>> splits_by_words(const fs::path& folder) {
  std::vector<std::string> files = list_files(folder);
  std::erase_if(files, [](const std::string& file) { return !is_readable(file); });
  return split_by_words(files);
}

std::vector<std::string> splits_in_folder(const fs::path& folder) {
  std::set<std::string> names;
  for (const Candidate& c : list_candidates(folder)) names.insert(c.split);
  for (const auto& [name, files] : splits_by_words(folder)) names.insert(name);
  return {names.begin(), names.end()};
}

// The same rows twice, such as train.json beside train.jsonl.
void refuse_two_files(const fs::path& folder, const std::vector<Candidate>& candidates) {
  const Candidate* first = nullptr;
  for (const Candidate& c : candidates) {
    if (c.place != Place::kFile) continue;
    if (first != nullptr) {
      throw ConfigError("{}: found {} and {}, expected one file for the split; remove one",
                        folder.string(), first->path.filename().string(),
                        c.path.filename().string());
    }
    first = &c;
  }
}

// Where `datasets` reads a packed file beside the others, a part of the rows alone would train.
void refuse_packed(const fs::path& folder, const std::string& split) {
  std::vector<std::string> files = list_files(folder);
  std::erase_if(files, [](const std::string& file) {
    return !is_readable(file) && unpacker_of(file).empty();
  });
  const auto by_words = split_by_words(files);
  const auto found = by_words.find(split);
  if (found == by_words.end()) return;
  for (const std::string& file : found->second) {
    if (!is_readable(file)) refuse_format(folder / file);
  }
}

std::vector<fs::path> find_in_folder(const fs::path& folder, const std::string& split) {
  refuse_packed(folder, split);
  std::vector<Candidate> candidates = list_candidates(folder);
  std::erase_if(candidates, [&split](const Candidate& c) { return c.split != split; });
  refuse_two_files(folder, candidates);
  std::vector<fs::path> files;
  const auto by_words = splits_by_words(folder);
  if (const auto found = by_words.find(split); found != by_words.end()) {
    for (const std::string& file : found->second) files.push_back(folder / file);
    return files;
  }
  if (candidates.empty()) refuse_split(folder.string(), splits_in_folder(folder), split);
  const Place best = std::ranges::min_element(candidates, {}, &Candidate::place)->place;
  std::erase_if(candidates, [best](const Candidate& c) { return c.place != best; });
  for (Candidate& c : candidates) files.push_back(std::move(c.path));
  return files;
}

// The card's patterns of a split.
std::vector<fs::path> find_by_patterns(const fs::path& folder, const DatasetConfiguration& card,
                                       const std::string& split) {
  const fs::path base = folder / card.data_dir;
  std::vector<std::string> have;
  for (const auto& [name, patterns] : card.data_files) {
    have.push_back(name);
    if (name != split) continue;
    const std::vector<std::string> all = list_files(base);
    std::vector<fs::path> files;
    for (const std::string& pattern : patterns) {
      const size_t before = files.size();
      for (const std::string& file : all) {
        if (matches_pattern(file, pattern) && is_readable(file)) files.push_back(base / file);
      }
      if (files.size() > before) continue;
      throw IoError(
          "{}: found no data file that matches \"{}\" of its configuration \"{}\", "
          "expected at least one; complete the download",
          base.string(), pattern, card.name);
    }
    return files;
  }
  refuse_split(fmt::format("{} (configuration {})", folder.string(), card.name), have, split);
}

std::vector<fs::path> find_configured(const fs::path& folder, const std::string& split,
                                      const std::string& configuration) {
  const std::vector<DatasetConfiguration> all = read_configurations(folder);
  if (!all.empty()) {
    const DatasetConfiguration& card = choose_configuration(all, configuration, folder.string());
    if (!card.data_files.empty()) return find_by_patterns(folder, card, split);
    return find_in_folder(folder / card.data_dir, split);
  }
  if (configuration.empty() || configuration == "default") return find_in_folder(folder, split);
  if (fs::is_directory(folder / configuration)) {
    return find_in_folder(folder / configuration, split);
  }
  throw ConfigError(
      "dataset_config: found \"{}\", expected a folder of that name in {}, or a "
      "README.md there that lists it under \"configs\"",
      configuration, folder.string());
}

}  // namespace

std::vector<fs::path> find_split_files(const fs::path& file_or_folder, const std::string& split,
                                       const std::string& configuration) {
  const std::string subject = file_or_folder.string();
  const bool has_pattern = is_pattern(file_or_folder);
  if (!has_pattern && !fs::exists(file_or_folder)) {
    throw IoError("{}: found nothing there, expected a file or a folder with data{}", subject,
                  did_you_mean(file_or_folder));
  }
  if (has_pattern || !fs::is_directory(file_or_folder)) {
    std::vector<fs::path> files =
        has_pattern ? match_pattern(file_or_folder) : std::vector<fs::path>{file_or_folder};
    for (const fs::path& file : files) {
      if (!is_readable(file)) refuse_format(file);
    }
    if (split == "train") return files;
    throw ConfigError(
        "{}: found a single {}, which is the split \"train\", expected a split \"{}\"; give a "
        "folder with train.jsonl and {}.jsonl",
        subject, has_pattern ? "set of files" : "file", split, split);
  }
  if (const std::vector<std::string> saved = saved_splits(file_or_folder); !saved.empty()) {
    if (!std::ranges::binary_search(saved, split)) refuse_split(subject, saved, split);
    return saved_files(file_or_folder / split);
  }
  if (is_saved_dataset(file_or_folder)) {
    if (split != "train") refuse_split(subject, {"train"}, split);
    return saved_files(file_or_folder);
  }
  std::vector<fs::path> files =
      choose_kind(find_configured(file_or_folder, split, configuration)).kept;
  require_all_shards(files);
  return files;
}

std::vector<fs::path> find_left_out_files(const fs::path& file_or_folder, const std::string& split,
                                          const std::string& configuration) {
  if (!fs::is_directory(file_or_folder) || is_saved_dataset(file_or_folder) ||
      !saved_splits(file_or_folder).empty()) {
    return {};
  }
  return choose_kind(find_configured(file_or_folder, split, configuration)).left_out;
}

bool would_read(const fs::path& file_or_folder, const std::string& split,
                const std::string& configuration, const fs::path& file) {
  if (!is_readable(file)) return false;
  if (is_pattern(file_or_folder)) {
    const std::string pattern = fs::absolute(file_or_folder).lexically_normal().string();
    const std::string path = fs::absolute(file).lexically_normal().string();
    return split == "train" && ::fnmatch(pattern.c_str(), path.c_str(), FNM_PATHNAME) == 0;
  }
  if (!fs::is_directory(file_or_folder) || is_saved_dataset(file_or_folder) ||
      !saved_splits(file_or_folder).empty()) {
    return false;
  }
  fs::path folder = file_or_folder;
  const std::vector<DatasetConfiguration> all = read_configurations(folder);
  const DatasetConfiguration* card =
      all.empty() ? nullptr : &choose_configuration(all, configuration, folder.string());
  if (card != nullptr) {
    folder /= card->data_dir;
  } else if (!configuration.empty() && fs::is_directory(folder / configuration)) {
    folder /= configuration;
  }
  const std::string relative =
      fs::weakly_canonical(file).lexically_relative(fs::weakly_canonical(folder)).string();
  if (relative.empty() || relative.starts_with("..") || is_hidden(relative)) return false;
  if (card != nullptr && !card->data_files.empty()) {
    for (const auto& [name, patterns] : card->data_files) {
      for (const std::string& pattern : patterns) {
        if (name == split && matches_pattern(relative, pattern)) return true;
      }
    }
    return false;
  }
  std::vector<std::string> files = list_files(folder);
  std::erase_if(files, [](const std::string& name) { return !is_readable(name); });
  const auto names_of_split = [&] {
    const std::vector<std::string> names = split_by_words(files)[split];
    return choose_kind({names.begin(), names.end()}).kept;
  };
  const std::vector<fs::path> before = names_of_split();
  if (!std::ranges::binary_search(files, relative)) {
    files.insert(std::ranges::upper_bound(files, relative), relative);
  }
  const std::vector<fs::path> after = names_of_split();
  return after != before || std::ranges::find(after, fs::path(relative)) != after.end();
}

bool has_split(const fs::path& file_or_folder, const std::string& split,
               const std::string& configuration) {
  // What is there but incomplete is an error of its own, later.
  try {
    const std::vector<std::string> names = list_splits(file_or_folder, configuration);
    if (std::ranges::find(names, split) != names.end()) return true;
    find_split_files(file_or_folder, split, configuration);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

std::vector<std::string> list_splits(const fs::path& file_or_folder,
                                     const std::string& configuration) {
  if (!fs::is_directory(file_or_folder) || is_saved_dataset(file_or_folder)) return {"train"};
  if (std::vector<std::string> saved = saved_splits(file_or_folder); !saved.empty()) return saved;
  fs::path folder = file_or_folder;
  std::set<std::string> names;
  const std::vector<DatasetConfiguration> all = read_configurations(folder);
  if (!all.empty()) {
    const DatasetConfiguration& card = choose_configuration(all, configuration, folder.string());
    for (const auto& [name, patterns] : card.data_files) names.insert(name);
    if (!names.empty()) return {names.begin(), names.end()};
    folder /= card.data_dir;
  } else if (!configuration.empty() && fs::is_directory(folder / configuration)) {
    folder /= configuration;
  }
  return splits_in_folder(folder);
}

}  // namespace strata::data
