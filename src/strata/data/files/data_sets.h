// One or several data sets by their names, as one list of rows: paths, patterns and Hub names,
// split specifications with slices, mixtures by weight. Never interprets columns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strata/data/files/source.h"
#include "strata/hf/hub/download.h"

namespace strata::data {

struct DataRequest {
  std::string names;            // dataset_name: paths or Hub names with commas between
  std::string split = "train";  // with slices: train[:10%]+extra
  // Without weights the sets stand one after the other (datasets.concatenate_datasets); with them
  // each row is drawn from one of the sets until the first is used up
  // (datasets.interleave_datasets with these probabilities and this seed).
  std::vector<double> weights = {};
  uint64_t seed = 42;
  std::string hub_cache = {};  // cache_dir; empty: the default of hf/hub/cache.h
  hf::DownloadProgress download_progress = {};
  LoadOptions load = {};
};

struct ReadDataResult : ReadResult {
  // With weights: the rows in their mixed order, as numbers of rows in the order of reading (a row
  // that no draw met is not read). Empty: the order of reading.
  std::vector<int64_t> order;
};

// Reads the rows in batches, as read_split does. Slices in percent or from the end and weights need
// the number of rows, for which the files are read once before.
// Errors: as read_split; ConfigError for an empty slice, for weights that do not fit the names, and
// for a Hub name that is not in the cache (names the folder where it was looked for).
ReadDataResult read_data(const DataRequest& request, const TakeRows& take);

// All rows in memory, in their order.
Split load_data(const DataRequest& request);

// The same files, without reading them: what a cache of their rows depends on. A list for every
// data set and part of the split, which is what slices and weights count by.
std::vector<std::vector<std::filesystem::path>> find_data_files(const DataRequest& request);

// What the data sets have beside what is read, one line each: files of another kind, keys of a
// card's configuration.
std::vector<std::string> describe_ignored(const DataRequest& request);

// What the cards of the data sets say of their columns: what else a cache depends on.
std::vector<ClassNames> find_card_classes(const DataRequest& request);

// Whether every data set of the request has the splits that `specification` names.
bool has_splits(const DataRequest& request, const std::string& specification);

// The splits of the first data set, for messages.
std::vector<std::string> list_splits(const DataRequest& request);

// The set that each row of a mixture is drawn from, in order: sizes[i] rows are in set i.
// Errors: ConfigError for weights that are not positive or not as many as sizes.
std::vector<size_t> interleave(const std::vector<int64_t>& sizes,
                               const std::vector<double>& weights, uint64_t seed);

}  // namespace strata::data
