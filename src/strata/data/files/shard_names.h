// Names of files that are parts of one split: train-00001-of-00003.parquet. Reads names only.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace strata::data {

struct ShardName {
  std::string split;
  int index = 0;
  int count = 0;  // of all parts
};

// "train-00001-of-00003", also with the hash that the Hub once wrote after it; nothing for another
// name. `stem`: without extensions.
std::optional<ShardName> parse_shard(const std::string& stem);

// The name without the extensions: "train.jsonl.gz" -> "train".
std::string stem_of(const std::filesystem::path& path);

// Errors: ConfigError if some of the files are parts of a split whose other parts are not there: a
// download that was broken off would train on less than everything.
void require_all_shards(const std::vector<std::filesystem::path>& files);

}  // namespace strata::data
