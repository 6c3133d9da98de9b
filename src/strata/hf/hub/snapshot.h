// Whether a snapshot in the Hub's cache holds all files that somebody wants of it: a download may
// have been broken off, and other programs fetch single files. Never touches the network.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "strata/hf/hub/cache.h"

namespace strata::hf {

// Whether a file of the repository is wanted; empty: all are.
using WantsFile = std::function<bool(const std::string&)>;
// Names of files that a folder cannot do without and does not have.
using LacksFiles = std::function<std::vector<std::string>(const std::filesystem::path&)>;

struct SnapshotState {
  std::filesystem::path folder;
  // A listing of the commit's files is in the cache; without one, further files may be missing.
  bool is_listed = false;
  std::vector<std::string> missing;  // sorted
};

// Compares the snapshot with the listing that huggingface_hub (trees/COMMIT.json) or this program
// (.strata/COMMIT) keeps of its commit, and asks `lacks` where there is none.
// Errors: as find_snapshot. A listing that cannot be read counts as none.
SnapshotState inspect_snapshot(const HubRequest& request, const WantsFile& wants,
                               const LacksFiles& lacks);

// Keeps the listing of a commit, so that the Hub need not be asked again. A cache that cannot be
// written stays as it is.
void remember_listing(const HubRequest& request, const std::string& commit,
                      const std::vector<std::string>& names);

// What a model's folder cannot do without: config.json, weights, and every file that their index
// names. Of an adapter's folder: nothing.
std::vector<std::string> lacking_model_files(const std::filesystem::path& folder);
// Any of the files that a tokenizer is read from; "tokenizer.json" stands for them.
std::vector<std::string> lacking_tokenizer_files(const std::filesystem::path& folder);

}  // namespace strata::hf
