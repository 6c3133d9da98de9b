// The Hub's cache on disk, as huggingface_hub lays it out: models--ORG--NAME/refs/main names a
// commit, snapshots/COMMIT holds its files. Never touches the network.
#pragma once

#include <filesystem>
#include <string>

namespace strata::hf {

enum class HubKind { kModel, kDataset };

struct HubRequest {
  HubKind kind = HubKind::kModel;
  std::string name;                  // "org/name", or "name" for old models
  std::string revision = "main";     // a branch, tag or commit
  std::filesystem::path cache = {};  // empty: hub_cache_folder()
};

// Whether the text can name a branch, tag or commit, which is a part of paths in the cache.
bool is_hub_revision(const std::string& revision);

// Whether the text can be a repository's name: "org/name" or "name", no path.
bool is_hub_name(const std::string& name);

// HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, else hub/ in hf_home().
std::filesystem::path hub_cache_folder();
// HF_HOME, else huggingface/ in XDG_CACHE_HOME or ~/.cache.
std::filesystem::path hf_home();

// The folder of a repository: CACHE/datasets--org--name.
std::filesystem::path repository_folder(const HubRequest& request);

// Whether find_snapshot would find it.
bool has_snapshot(const HubRequest& request);

// The snapshot's folder. Errors: IoError that names the folder where it was looked for.
std::filesystem::path find_snapshot(const HubRequest& request);

}  // namespace strata::hf
