// Models by their names: which folder stands for one, and which files of the Hub's repository are
// fetched for it. Never reads them.
#pragma once

#include <filesystem>
#include <string>

#include "strata/hf/hub/download.h"

namespace strata::hf {

// Where and as what a name is looked for on the Hub; of a folder of this machine it says nothing.
struct HubPlace {
  std::filesystem::path cache = {};  // empty: hub_cache_folder()
  std::string revision = "main";     // a branch, tag or commit
};

// A model's folder: what exists under the name; else the snapshot of the Hub's model of that name
// (weights as safetensors, config, tokenizer), completed or downloaded where the network may be
// used; else the name itself, which the reader of the folder will refuse.
// Errors: IoError for a model that is nowhere, or of which a part is missing; ConfigError for what
// is no revision.
std::filesystem::path locate_model(const std::string& name_or_path, const HubPlace& place = {},
                                   const DownloadProgress& progress = {});

// The same for whoever needs no weights: tokenizer, templates and config.json.
std::filesystem::path locate_tokenizer(const std::string& name_or_path, const HubPlace& place = {},
                                       const DownloadProgress& progress = {});

// The same for whoever needs config.json alone: of a model that is not in the cache nothing else is
// downloaded, and that to a cache of its own ("configs" in the cache), where it does not pass for
// the model.
std::filesystem::path locate_model_config(const std::string& name_or_path,
                                          const HubPlace& place = {},
                                          const DownloadProgress& progress = {});

// The same with the generation_config.json beside it, where the model has one.
std::filesystem::path locate_generation_config(const std::string& name_or_path,
                                               const HubPlace& place = {},
                                               const DownloadProgress& progress = {});

}  // namespace strata::hf
