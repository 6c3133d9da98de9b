#include "strata/data/split_files.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>

#include <fmt/ranges.h>

#include "strata/base/error.h"
#include "strata/data/source.h"

namespace strata::data {
namespace {

namespace fs = std::filesystem;

// The places where a split may lie, the first one wins.
enum class Place { kFile, kShards, kDataFolder, kSubfolder };

struct Candidate {
  std::string split;
  Place place;
  fs::path path;
  bool readable;       // JSON, not parquet and the like
  int num_shards = 0;  // of a NAME-00000-of-000NN file
};

bool is_json(const fs::path& path) {
  return path.extension() == ".jsonl" || path.extension() == ".json";
}

// Formats in which the reference's data sets come and which are not read.
bool is_foreign(const fs::path& path) {
  static const std::set<std::string> kExtensions = {".parquet", ".arrow", ".csv", ".tsv",
                                                    ".txt",     ".gz",    ".zst"};
  return kExtensions.contains(path.extension().string());
}

struct ShardName {
  std::string split;
  int num_shards;
};

// "train-00001-of-00003" -> train, 3.
std::optional<ShardName> parse_shard(const std::string& stem) {
  constexpr size_t kSuffix = 15;  // -00000-of-00000
  if (stem.size() <= kSuffix) return std::nullopt;
  const std::string suffix = stem.substr(stem.size() - kSuffix);
  for (size_t i = 0; i < kSuffix; ++i) {
    const char pattern = "-00000-of-00000"[i];
    const bool digit = std::isdigit(static_cast<unsigned char>(suffix[i])) != 0;
    if (pattern == '0' ? !digit : pattern != suffix[i]) return std::nullopt;
  }
  return ShardName{stem.substr(0, stem.size() - kSuffix), std::stoi(suffix.substr(10))};
}

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

// The name without the extensions: "train.jsonl.gz" -> "train".
std::string stem_of(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.substr(0, name.find('.', 1));
}

void add_top_level(const fs::path& path, std::vector<Candidate>& found) {
  const std::string stem = stem_of(path);
  if (const auto shard = parse_shard(stem)) {
    found.push_back({shard->split, Place::kShards, path, is_json(path), shard->num_shards});
  } else {
    found.push_back({stem, Place::kFile, path, is_json(path)});
  }
}

void add_folder(const fs::path& folder, std::vector<Candidate>& found) {
  const std::string name = folder.filename().string();
  for (const fs::path& path : sorted_entries(folder)) {
    if (!fs::is_regular_file(path) || (!is_json(path) && !is_foreign(path))) continue;
    if (name == "data") {
      const std::string file = path.filename().string();
      found.push_back(
          {file.substr(0, file.find_first_of("-._")), Place::kDataFolder, path, is_json(path)});
    } else {
      found.push_back({name, Place::kSubfolder, path, is_json(path)});
    }
  }
}

std::vector<Candidate> list_candidates(const fs::path& folder) {
  std::vector<Candidate> found;
  for (const fs::path& path : sorted_entries(folder)) {
    if (fs::is_directory(path)) {
      add_folder(path, found);
    } else if (is_json(path) || is_foreign(path)) {
      add_top_level(path, found);
    }
  }
  return found;
}

[[noreturn]] void refuse_foreign(const fs::path& path) {
  throw ConfigError(
      "{}: found a {} file, expected JSON lines (this version reads no other format); convert it, "
      "for example with datasets: load_dataset(...).to_json(\"train.jsonl\")",
      path.string(), path.extension().string().substr(1));
}

void check_shards(const std::vector<Candidate>& shards) {
  const auto found = static_cast<int>(shards.size());
  for (const Candidate& shard : shards) {
    if (shard.num_shards == found) continue;
    throw ConfigError("{}: found {} of the split's files, expected {}; complete the download",
                      shard.path.string(), found, shard.num_shards);
  }
}

std::string join_names(const std::vector<std::string>& names) {
  return names.empty() ? "no splits" : fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::vector<fs::path> find_split_files(const fs::path& file_or_folder, const std::string& split) {
  const std::string subject = file_or_folder.string();
  if (!fs::exists(file_or_folder)) {
    throw IoError("{}: found nothing there, expected a file or a folder with data", subject);
  }
  if (!fs::is_directory(file_or_folder)) {
    if (!is_json(file_or_folder) && is_foreign(file_or_folder)) refuse_foreign(file_or_folder);
    if (split == "train") return {file_or_folder};
    throw ConfigError(
        "{}: found a single file, which is the split \"train\", expected a split \"{}\"; give a "
        "folder with train.jsonl and {}.jsonl",
        subject, split, split);
  }
  std::vector<Candidate> candidates = list_candidates(file_or_folder);
  std::erase_if(candidates, [&split](const Candidate& c) { return c.split != split; });
  std::optional<Place> best;
  for (const Candidate& c : candidates) {
    if (c.readable && (!best || c.place < *best)) best = c.place;
  }
  if (!best) {
    if (!candidates.empty()) refuse_foreign(candidates.front().path);
    throw ConfigError("{}: found {}, expected a split \"{}\"; add {}.jsonl or name another split",
                      subject, join_names(list_splits(file_or_folder)), split, split);
  }
  std::erase_if(candidates,
                [&best](const Candidate& c) { return c.place != *best || !c.readable; });
  if (best == Place::kShards) check_shards(candidates);
  if (best == Place::kFile && candidates.size() > 1) {
    throw ConfigError("{}: found {} and {}, expected one file for the split; remove one", subject,
                      candidates[0].path.filename().string(),
                      candidates[1].path.filename().string());
  }
  std::vector<fs::path> files;
  for (Candidate& c : candidates) files.push_back(std::move(c.path));
  return files;
}

std::vector<std::string> list_splits(const fs::path& file_or_folder) {
  if (!fs::is_directory(file_or_folder)) return {"train"};
  std::set<std::string> names;
  for (const Candidate& c : list_candidates(file_or_folder)) {
    if (c.readable) names.insert(c.split);
  }
  return {names.begin(), names.end()};
}

}  // namespace strata::data
